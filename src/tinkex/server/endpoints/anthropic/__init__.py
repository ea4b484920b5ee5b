"""The Anthropic-style routes: messages, and counting their tokens."""
