"""Sampling: continuous batching over a paged KV cache, from many weight versions at once.

cache        who holds which page, the prefix cache, and the keys and values themselves;
             samples of one prompt share its pages
request      one sample command and its branches, a sequence each
scheduling   which tokens are computed next, fairness, and preemption
forward      the passes: paged_attention over pages, projection with each token's own adapter
adapters     the adapters that can be sampled from
gpu_decode   on a GPU, steps of single tokens as captured graphs
cpu_decode   on a CPU, steps of single tokens of small models, in numpy
speculation  speculative decoding: guesses in rows that cost nothing
grammar      which tokens a grammar allows next
controls     allowed tokens, bias and penalties on logits
draw, turns  logits to tokens, reproducibly; which branch draws from which
stopping     when a sequence ends
prompt_logprobs, prompt_scoring: what is asked about a prompt
sampler      all of these in one step
"""
