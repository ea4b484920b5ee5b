"""Decode steps on a GPU: captured graphs, their rows, and their products."""
