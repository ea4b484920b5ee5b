"""Batch-invariant kernels: a row's bits are its own, whoever shares the launch.

What they ask of the card is that one element of a matrix instruction's result depends on its own
row and column alone, and that inputs are summed in order: `benchmarks/engine_steady.py` verifies
it. Everything else is fixed here: where keys and inputs are cut, in which order pieces are joined.
A compiler that fused a multiplication with an addition in one kernel and not in the next would give
other bits: fusion is switched off where kernels must agree, and said by `tl.fma` where it is meant.
"""
