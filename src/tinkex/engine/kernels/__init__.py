"""Triton kernels. They know tensors, nothing of runs, requests or models."""
