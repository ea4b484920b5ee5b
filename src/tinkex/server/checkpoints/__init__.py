"""Checkpoints: saved, named, copied, published, and taken away."""
