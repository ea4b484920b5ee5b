"""Triton kernels from logits to logprobs and back, in one pass over the logits each way.

The logits stay in the model's dtype and become their own gradient where they lie; every number in
between is float32 and lives in registers. `training.logprobs` says what they compute.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096


def logsumexp(logits: Tensor) -> Tensor:
    """Of each row of [n, vocab], in float32."""
    rows, vocab = logits.shape
    out = torch.empty(rows, dtype=torch.float32, device=logits.device)
    _logsumexp[(rows,)](logits, out, vocab, logits.stride(0), BLOCK=_BLOCK, num_warps=8)
    return out


def logit_gradient_(
    logits: Tensor, norm: Tensor, starts: Tensor, targets: Tensor, slope: Tensor
) -> Tensor:
    """Of Σ slope · logprob by the logits, written over them.

    Row r's cells are [starts[r], starts[r + 1]); `norm` is what `logsumexp` found.
    """
    rows, vocab = logits.shape
    _gradient[rows, triton.cdiv(vocab, _BLOCK)](
        logits, norm, starts, targets, slope, vocab, logits.stride(0), BLOCK=_BLOCK, num_warps=8
    )
    return logits


@triton.jit
def _logsumexp(logits, out, vocab, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    highest = tl.full([], -float("inf"), tl.float32)
    total = tl.full([], 0.0, tl.float32)
    for start in range(0, vocab, BLOCK):
        column = start + lane
        x = tl.load(logits + row * stride + column, mask=column < vocab, other=-float("inf"))
        x = x.to(tl.float32)
        higher = tl.maximum(highest, tl.max(x, 0))
        # A row of nothing but minus infinity must not become 0 · inf.
        base = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp(highest - base) + tl.sum(tl.exp(x - base), 0)
        highest = higher
    tl.store(out + row, highest + tl.log(total))


@triton.jit
def _gradient(
    logits,
    norm,
    starts,
    targets,
    slope,
    vocab,
    stride,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < vocab
    first, last = tl.load(starts + row), tl.load(starts + row + 1)
    place = logits + row * stride + column
    x = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    share = tl.exp(x - tl.load(norm + row))
    gradient = tl.zeros([BLOCK], tl.float32)
    for cell in range(first, last):
        own = tl.load(slope + cell)
        gradient += own * (tl.where(column == tl.load(targets + cell), 1.0, 0.0) - share)
    tl.store(place, gradient, mask=inside)
