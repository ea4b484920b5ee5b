"""Sampling: continuous batching over a paged cache, from many weight versions at once.

pages      who holds which page, and which pages can be reused
cache      the keys and values themselves
request    one sample command and its sequences
scheduler  which tokens are computed next
shares     whose prompts go first, and how much of the time they take
preemption who gives pages back when there are too few
attention  attention over pages, for one step's tokens
projection matrix products with each token's own adapter
versions   the adapters that can be sampled from
decode_graph, decode_rows, adapter_table and the kernels: on a GPU, steps of single tokens
grammar    which tokens a grammar allows next
controls   allowed tokens, bias and penalties on logits
draw       logits to tokens, reproducibly
stopping   when a sequence ends
scores     what is asked about a prompt
sampler    all of these in one step
"""
