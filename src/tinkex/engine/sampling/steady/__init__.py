"""Steady mode of sampling: the kernels of training over pages, adapters and draws of a step."""
