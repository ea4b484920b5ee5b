"""Kernels of linear attention: the gated delta rule, its gates and its convolution."""
