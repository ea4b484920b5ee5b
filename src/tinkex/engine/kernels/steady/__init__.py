"""Batch-invariant kernels: a row's bits are its own, whoever shares the launch.

What they ask of the card is that one element of a matrix instruction's result depends on its own
row and column alone, and that inputs are summed in order: `benchmarks/engine_steady.py` verifies
it. Everything else is fixed here: where keys and inputs are cut, in which order pieces are joined.
Multiplications and additions that a compiler might fuse in one kernel and not in the next are
written as `tl.fma`, or in a form that cannot be fused.
"""
