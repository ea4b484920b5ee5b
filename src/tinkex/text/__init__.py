"""Text: tokenizers and chat templates of the served models."""
