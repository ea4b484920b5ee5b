"""Kernels of mixtures of experts, for many tokens and for few."""
