"""Blocks: what a decoder's layers are made of. One module per kind, configuration beside it."""
