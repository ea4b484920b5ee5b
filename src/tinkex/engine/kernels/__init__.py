"""Triton kernels. They know tensors, nothing of runs, requests or models.

Kernels of a pair, forwards and backwards, begin with the same lines: which rows and columns a
program has, and what it loads of them. They stay written out in each. A shared function would have
to return up to a dozen blocks with their masks, and which of them stay in registers is what a
kernel is tuned by; under the interpreter that could not be seen.

A number that changes from call to call (rows, tokens, an entry, a table's stride) is named in
`do_not_specialize`: Triton would compile a kernel for one, for multiples of 16 and for all others,
each at its first call, which is some user's.
"""
