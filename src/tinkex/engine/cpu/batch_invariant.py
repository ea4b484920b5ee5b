"""Batch-invariant products with frozen matrices in training: no row changes another row's bits.

What else is in a batch must not change a call's numbers, and libraries differ in how they split a
product between threads and sum the pieces. oneDNN is tried first: on AMD's processors it is
batch-invariant, and faster than MKL. On Intel's it is not, but there MKL can be made so
(`engine.process.parent.ENVIRONMENT`). Neither is for very few rows: see `packing.SOLO_TOKENS`.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tinkex.engine.cpu import onednn

_FEW_THREADS = 2
"""Up to here MKL is steady everywhere, so that smaller matrices may be left to it."""

_OUTPUTS = 8
"""Made of a matrix with a single one. A product with a vector is another routine's, and some sum
its rows by fours and what is left over in another order."""

_TRIED_ROWS = (16, 17, 39, 64, 101, 136, 300)
_TRIED_SHAPES = ((128, 512), (512, 128), (576, 960))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x @ weight.T + bias, with a gradient for x if it wants one."""
    if len(weight) == 1 and x.is_cpu:
        several = weight.expand(_OUTPUTS, -1).contiguous()
        return F.linear(x, several, None if bias is None else bias.expand(_OUTPUTS))[:, :1]
    if not takes(x, weight):
        return F.linear(x, weight, bias)
    if x.requires_grad and torch.is_grad_enabled():
        return _Linear.apply(x, weight, bias)  # type: ignore[no-any-return, no-untyped-call]  # torch's `apply` is untyped
    return onednn.linear(x, weight, bias)


def linear_into(out: Tensor, x: Tensor, weight: Tensor) -> None:
    """out = x @ weight.T, without gradients."""
    if takes(x, weight):
        out.copy_(onednn.linear(x, weight))
    else:
        torch.mm(x, weight.T, out=out)


def times(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight, without gradients."""
    return onednn.linear(x, weight.T) if takes(x, weight) else x @ weight


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return onednn.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        return times(grads[0], weight), None, None


def takes(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN makes this product."""
    threads = torch.get_num_threads()
    if weight.numel() < onednn.LARGE_MATRIX and threads <= _FEW_THREADS:
        return False
    return weight.dtype == torch.float32 and x.is_cpu and onednn.works() and _steady(threads)


@functools.cache
def _steady(threads: int) -> bool:
    """Whether oneDNN gives rows the bits they have among others, with as many threads as now."""
    draw = torch.Generator().manual_seed(threads)
    for inputs, outputs in _TRIED_SHAPES:
        weight = torch.randn(outputs, inputs, generator=draw)
        for matrix in (weight, weight.T.contiguous().T):
            x = torch.randn(2 * max(_TRIED_ROWS), inputs, generator=draw)
            together = onednn.linear(x, matrix)
            for rows in _TRIED_ROWS:
                part = slice(rows, 2 * rows)
                if not torch.equal(onednn.linear(x[part], matrix), together[part]):
                    return False
    return True
