"""Linear attention: the gated delta rule, its convolution and gates, on a CPU and by kernels."""
