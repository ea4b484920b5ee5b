"""Engines: which models are served, the processes that serve them, what they have loaded."""
