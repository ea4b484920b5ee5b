"""Continuous batching: which tokens are computed next, fairly between lanes."""
