"""The frozen base model: its configuration, its weights, and one forward pass for all uses."""
