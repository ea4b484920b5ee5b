"""The gated delta rule and the convolution before it, by kernels: what `delta` is on a CPU.

Everything is read where it lies in the pack. States and what came before a sequence are nothing, or
lie in a store by place; then they are moved on, and there are no gradients. Needs Triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tinkex.engine.kernels.linear import delta as kernel
from tinkex.engine.kernels.linear import delta_backward, short_conv
from tinkex.engine.model.block_configs import GatedDeltaConfig
from tinkex.engine.to_device import to_device


class DeviceStretches:
    """Where sequences, or pieces of them, lie in a pack, and the places of their states."""

    def __init__(
        self, lengths: Sequence[int], device: torch.device, places: Sequence[int] | None = None
    ) -> None:
        counts = np.array(lengths, np.int64)
        starts = np.concatenate([[0], np.cumsum(counts)])
        own = np.zeros(len(counts), np.int64) if places is None else np.array(places, np.int64)
        chunks = -(-counts // kernel.CHUNK)
        before = np.repeat(np.cumsum(chunks) - chunks, chunks)
        at = (np.arange(len(before)) - before) * kernel.CHUNK
        left = np.repeat(counts, chunks) - at
        cut = np.stack([np.repeat(starts[:-1], chunks) + at, np.minimum(left, kernel.CHUNK)], 1)
        stretches = np.stack([np.cumsum(chunks) - chunks, chunks, own], 1)
        bounds = np.stack([starts[:-1], counts, own], 1)
        offsets = np.arange(starts[-1]) - np.repeat(starts[:-1], counts)
        self.tokens = int(starts[-1])
        self.cut = _on(cut, device)
        self.stretches = _on(stretches, device)
        self.bounds = _on(bounds, device)
        self.offsets = _on(offsets, device)
        self.token_places = _on(np.repeat(own, counts), device)


def _on(numbers: Any, device: torch.device) -> Tensor:
    return to_device(np.ascontiguousarray(numbers, np.int32), device)


def convolved(
    x: Tensor, weight: Tensor, config: GatedDeltaConfig, at: DeviceStretches,
    store: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Queries, keys and values by head: as `delta.heads_of` after `delta.causal_conv`."""
    heads = short_conv.Heads(config.key_heads, config.key_dim)
    if store is not None:
        mixed = short_conv.convolve(x, weight, at.offsets, heads, store, at.token_places)
        short_conv.keep_last(x, store, at.bounds)
    elif x.requires_grad and torch.is_grad_enabled():
        mixed = _Convolve.apply(x, weight, at.offsets, heads)  # type: ignore[no-untyped-call]  # torch's `apply` is untyped
    else:
        mixed = short_conv.convolve(x, weight, at.offsets, heads)
    return split_heads(mixed, config)


def split_heads(mixed: Tensor, config: GatedDeltaConfig) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = mixed.split_with_sizes([config.key_size, config.key_size, config.value_size], dim=1)
    return (
        q.view(len(q), config.key_heads, config.key_dim),
        k.view(len(k), config.key_heads, config.key_dim),
        v.view(len(v), config.value_heads, config.value_dim),
    )


def delta_rule(x: kernel.Inputs, at: DeviceStretches, store: Tensor | None = None) -> Tensor:
    """[N, heads, V]."""
    if store is None and torch.is_grad_enabled() and any(part.requires_grad for part in x):
        result: Tensor = _Delta.apply(at, *x)  # type: ignore[no-untyped-call]  # torch's `apply` is untyped
        return result
    return _forward(x, at, store)


def _forward(x: kernel.Inputs, at: DeviceStretches, store: Tensor | None) -> Tensor:
    return _found(x, kernel.solve(x, at.cut), at, store)


def _found(
    x: kernel.Inputs, solved: kernel.Corrected, at: DeviceStretches, store: Tensor | None
) -> Tensor:
    scanned = kernel.scan(x, solved, at.cut, at.stretches, store, keep=True)
    return kernel.outputs(x, solved.total, scanned, at.cut)


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, offsets: Tensor, heads: short_conv.Heads
    ) -> Tensor:
        ctx.save_for_backward(x, weight, offsets)
        ctx.heads = heads
        return short_conv.convolve(x, weight, offsets, heads)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, offsets = ctx.saved_tensors
        return (
            short_conv.convolve_backward(grads[0], x, weight, offsets, ctx.heads),
            None,
            None,
            None,
        )


class _Delta(torch.autograd.Function):
    """Keeps its inputs and what was hard to solve, and computes the rest again before it goes
    back."""

    @staticmethod
    def forward(ctx: Any, at: DeviceStretches, *parts: Tensor) -> Tensor:
        x = kernel.Inputs(*parts)
        solved = kernel.solve(x, at.cut)
        ctx.save_for_backward(*parts, solved.inverse)
        ctx.at = at
        return _found(x, solved, at, None)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *parts, inverse = ctx.saved_tensors
        x, at = kernel.Inputs(*parts), ctx.at
        solved = kernel.solve(x, at.cut, inverse)
        scanned = kernel.scan(x, solved, at.cut, at.stretches, None, keep=True)
        found = delta_backward.gradients(x, solved, scanned, at.cut, at.stretches, grads[0])
        return (None, *found)
