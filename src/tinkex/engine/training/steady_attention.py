"""Batch-invariant attention over packed sequences: the `Attend` of training in steady mode."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tinkex.engine.kernels.steady import attention as kernel
from tinkex.engine.kernels.steady import attention_backward as backward_kernel
from tinkex.engine.to_device import to_device


class PackedTiles:
    """How sequences laid end to end are cut, on the device, in buffers that keep their place: a
    captured pass reads what is in them at the time. `rows` bounds all tokens together."""

    def __init__(self, rows: int, group: int, device: torch.device) -> None:
        self._group, self._device = group, device
        # No more tiles than tokens: each has one at least.
        self.queries, self.keys = (
            torch.zeros(rows, 4, dtype=torch.int32, device=device) for _ in range(2)
        )

    def fill(self, lengths: Sequence[int]) -> None:
        for target, cut in zip((self.queries, self.keys), cuts(lengths, self._group), strict=True):
            whole = np.zeros(target.shape, np.int32)
            whole[: len(cut)] = cut
            target.copy_(to_device(whole, self._device))


def cuts(lengths: Sequence[int], group: int) -> tuple[Any, Any]:
    """Tiles of queries and blocks of keys."""
    starts = [0, *accumulate(lengths)]
    chunks = [(at, count, 0, at) for at, count in zip(starts, lengths, strict=False)]
    return kernel.tiles(chunks, group), backward_kernel.key_tiles(lengths)


class SteadyAttention:
    """An `Attend` for sequences cut into these tiles; `split` is `kernel.split_of` the model's
    context, `longest` bounds a sequence's tokens."""

    def __init__(
        self, queries: Tensor, keys: Tensor, windows: Sequence[int | None], split: int, longest: int
    ) -> None:
        self._tiles, self._windows = (queries, keys), windows
        self._split, self._splits = split, -(-longest // split)

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        assert sinks is None, "steady mode is not for models with sinks: see matrices.steady"
        apply: Any = _Attend.apply
        facts = (*self._tiles, self._windows[layer], self._split, self._splits)
        result: Tensor = apply(q, k, v, *facts)
        return result


class SteadyPackedAttention(SteadyAttention):
    """The same for sequences of these lengths."""

    def __init__(
        self, lengths: Sequence[int], windows: Sequence[int | None], group: int, split: int,
        device: torch.device,
    ) -> None:  # fmt: skip
        queries, keys = (to_device(cut, device) for cut in cuts(lengths, group))
        super().__init__(queries, keys, windows, split, max(lengths))


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, queries: Tensor, keys: Tensor,
        window: int | None, split: int, splits: int,
    ) -> Tensor:  # fmt: skip
        sums = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
        out = kernel.attend(q, kernel.Keys(k, v), queries, window, split, splits, sums)
        ctx.save_for_backward(q, k, v, out, sums, queries, keys)
        ctx.window = window
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, sums, queries, keys = ctx.saved_tensors
        found = backward_kernel.gradients(grads[0], q, k, v, out, sums, queries, keys, ctx.window)
        return (*found, None, None, None, None, None)
