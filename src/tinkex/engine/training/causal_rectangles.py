"""Causal attention of packed sequences on a CPU, rectangle by rectangle, as one autograd step.

A rectangle is some sequences of one length. Torch's own kernel computes each. What autograd would
record around it, splitting and joining, takes a good part of a small model's step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

Rectangles: TypeAlias = Sequence[tuple[int, int]]
"""(count, length) of each, in the order of the tokens."""


def attend(q: Tensor, k: Tensor, v: Tensor, rectangles: Rectangles) -> Tensor:
    """q [N, heads, D], k and v [N, kv_heads, D] to [N, heads, D]."""
    result: Tensor = _Attend.apply(q, k, v, rectangles)  # type: ignore[no-untyped-call]  # torch's `apply` is untyped
    return result


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, rectangles: Rectangles) -> Tensor:
        out, sums = torch.empty(q.shape, dtype=q.dtype), []
        for mixed, *heads in _parts(rectangles, out, q, k, v):
            found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*heads, 0.0, True)
            mixed.copy_(found[0])
            sums.append(found[1])
        ctx.save_for_backward(q, k, v, out, *sums)
        ctx.rectangles = rectangles
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, *sums = ctx.saved_tensors
        found = [torch.empty(x.shape, dtype=x.dtype) for x in (q, k, v)]
        parts = _parts(ctx.rectangles, *found, grads[0], q, k, v, out)
        for (to_q, to_k, to_v, *heads), total in zip(parts, sums, strict=True):
            made = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                *heads, total, 0.0, True
            )
            for to, part in zip((to_q, to_k, to_v), made, strict=True):
                to.copy_(part)
        return (*found, None)


def _parts(rectangles: Rectangles, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Each rectangle of these tensors [N, heads, D] as [count, heads, length, D]."""
    sizes = [count * length for count, length in rectangles]
    cut = [x.transpose(0, 1)[None].split_with_sizes(sizes, dim=2) for x in tensors]
    for (count, length), *parts in zip(rectangles, *cut, strict=True):
        if count == 1:
            yield tuple(parts)
        else:
            yield tuple(x[0].unflatten(1, (count, length)).transpose(0, 1) for x in parts)
