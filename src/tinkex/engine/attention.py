"""Causal attention over packed sequences: each token sees the earlier ones of its own sequence.

On a GPU one variable-length kernel takes the whole pack. Elsewhere, and for dtypes that kernel does
not know, neighbours of equal length go as one rectangle through torch's attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional as F

from tinkex.engine.packing import rectangles


class PackedAttention:
    """An `Attend` for sequences of these lengths laid end to end."""

    def __init__(
        self, lengths: Sequence[int], windows: Sequence[int | None], device: torch.device
    ) -> None:
        self._windows = windows
        self._rectangles = rectangles(lengths)
        self._longest = max(lengths)
        self._bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        window = self._windows[layer]
        if q.is_cuda and q.dtype in (torch.bfloat16, torch.float16):
            return self._varlen(q, k, v, window)
        return self._by_rectangle(q, k, v, window)

    def _varlen(self, q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn

        reach = -1 if window is None else window - 1
        out: Tensor = varlen_attn(  # type: ignore[assignment]
            q, k, v, self._bounds, self._bounds, self._longest, self._longest,
            window_size=(reach, 0), enable_gqa=q.shape[1] != k.shape[1],
        )  # fmt: skip
        return out

    def _by_rectangle(self, q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
        sizes = [count * length for count, length in self._rectangles]
        parts = zip(
            q.split_with_sizes(sizes),
            k.split_with_sizes(sizes),
            v.split_with_sizes(sizes),
            self._rectangles,
            strict=True,
        )
        mixed = [_rectangle(qs, ks, vs, *shape, window) for qs, ks, vs, shape in parts]
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def _rectangle(
    q: Tensor, k: Tensor, v: Tensor, count: int, length: int, window: int | None
) -> Tensor:
    """`count` sequences of one length, [count · length, heads, D] in and out."""
    mask = None
    if window is not None and window < length:
        mask = sliding_mask(length, window, q.device)
    out = F.scaled_dot_product_attention(
        _heads_first(q, count, length),
        _heads_first(k, count, length),
        _heads_first(v, count, length),
        attn_mask=mask,
        is_causal=mask is None,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return out.transpose(1, 2).reshape(q.shape)


def _heads_first(x: Tensor, count: int, length: int) -> Tensor:
    return x.view(count, length, x.shape[1], x.shape[2]).transpose(1, 2)


def sliding_mask(length: int, window: int, device: torch.device) -> Tensor:
    """[length, length], true where a query (row) sees a key: itself and window - 1 before it."""
    places = torch.arange(length, device=device)
    distance = places[:, None] - places[None, :]
    return (distance >= 0) & (distance < window)
