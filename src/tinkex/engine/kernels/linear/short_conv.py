"""Triton kernels for the short causal convolution before the delta rule, and what follows it.

Each channel is convolved along its sequence and goes through a SiLU; of the first blocks of
channels, queries and keys by head, each is then brought to length one. Tokens lie end to end;
`offsets` int32 [N] is each token's place in its stretch. What came before a stretch is nothing, or
lies in a store [places, width - 1, channels], oldest first.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS = 16
_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Heads:
    """The first `queries` blocks of `size` channels are queries, as many keys follow them, the rest
    are values. Queries are scaled to length 1/sqrt(size)."""

    queries: int
    size: int

    def constants(self, weight: Tensor) -> dict[str, Any]:
        return {
            "CHANNELS": weight.shape[0], "WIDTH": weight.shape[1], "SIZE": self.size,
            "PADDED": max(16, triton.next_power_of_2(self.size)), "QUERIES": self.queries,
            "EPS": _EPS,
        }  # fmt: skip


def convolve(
    x: Tensor, weight: Tensor, offsets: Tensor, heads: Heads,
    store: Tensor | None = None, places: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """[N, channels] from x, any stride between tokens; weight float32 [channels, width]. `places`
    int32 [N] says where in the store the tokens before each token's stretch lie."""
    tokens, channels = x.shape
    out = torch.empty(tokens, channels, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(tokens, _ROWS), triton.cdiv(channels, heads.size))
    _convolve[grid](
        x, weight, offsets, offsets if places is None else places, x if store is None else store,
        out, tokens, x.stride(0), heads.size**-0.5, **heads.constants(weight),
        STORED=store is not None, ROWS=_ROWS, num_warps=4,
    )  # fmt: skip
    return out


def convolve_backward(
    grad: Tensor, x: Tensor, weight: Tensor, offsets: Tensor, heads: Heads
) -> Tensor:
    """Of x, given the outputs'."""
    tokens, channels = x.shape
    inner, out = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    grid = (triton.cdiv(tokens, _ROWS), triton.cdiv(channels, heads.size))
    constants = heads.constants(weight)
    _inner_backward[grid](
        grad.contiguous(), x, weight, offsets, inner, tokens, x.stride(0), heads.size**-0.5,
        **constants, ROWS=_ROWS, num_warps=4,
    )  # fmt: skip
    _spread_backward[grid](
        inner, weight, offsets, out, tokens, CHANNELS=channels, WIDTH=weight.shape[1],
        BLOCK=constants["PADDED"], SIZE=heads.size, ROWS=_ROWS, num_warps=4,
    )  # fmt: skip
    return out


def keep_last(x: Tensor, store: Tensor, bounds: Tensor) -> None:
    """Leave the last tokens of each stretch in the store; `bounds` int32 [stretches, 3] are first
    token, tokens and place."""
    reach, channels = store.shape[1:]
    block = 256
    _keep_last[len(bounds), triton.cdiv(channels, block)](
        x, store, bounds, x.stride(0), REACH=reach, SLOTS=triton.next_power_of_2(reach),
        CHANNELS=channels, BLOCK=block,
    )  # fmt: skip


def step(x: Tensor, weight: Tensor, heads: Heads, store: Tensor, places: Tensor) -> Tensor:
    """One token each after what lies in the store, which moves on by it."""
    rows, channels = x.shape
    out = torch.empty(rows, channels, dtype=x.dtype, device=x.device)
    _step[rows, triton.cdiv(channels, heads.size)](
        x, weight, places, store, out, x.stride(0), heads.size**-0.5, **heads.constants(weight),
        SLOTS=triton.next_power_of_2(weight.shape[1]), num_warps=1,
    )  # fmt: skip
    return out


@triton.jit
def _unit(y, block, scale, QUERIES: tl.constexpr, EPS: tl.constexpr):
    """Rows of a block of channels, brought to length one if they are queries or keys; and by
    what they were multiplied."""
    inverse = 1.0 / tl.sqrt(tl.sum(y * y, 1) + EPS)
    inverse = tl.where(block < QUERIES, inverse * scale, inverse)
    inverse = tl.where(block < 2 * QUERIES, inverse, 1.0)
    return y * inverse[:, None], inverse


@triton.jit
def _before_silu(
    x,
    weight,
    offset,
    place,
    store,
    rows,
    channels,
    real,
    x_stride,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    STORED: tl.constexpr,
):
    total = tl.zeros([rows.shape[0], channels.shape[0]], tl.float32)
    for lag in tl.static_range(WIDTH):
        own = real & (offset >= lag)[:, None]
        past = tl.load(
            x + (rows - lag)[:, None] * x_stride + channels[None, :], mask=own, other=0.0
        )
        past = past.to(tl.float32)
        if STORED:
            slot = place * (WIDTH - 1) + WIDTH - 1 - lag + offset
            earlier = real & (offset < lag)[:, None]
            past += tl.load(
                store + slot[:, None] * CHANNELS + channels[None, :], mask=earlier, other=0.0
            ).to(tl.float32)
        factor = tl.load(
            weight + channels * WIDTH + WIDTH - 1 - lag, mask=channels < CHANNELS, other=0.0
        )
        total += past * factor[None, :]
    return total


@triton.jit
def _block(
    offsets, tokens, block, CHANNELS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """This program's rows, how far each is from its sequence's start, the channels of its block,
    and which of these cells there are."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inner = tl.arange(0, PADDED)
    channels = block * SIZE + inner
    offset = tl.load(offsets + row, mask=row < tokens, other=0)
    real = (row < tokens)[:, None] & ((inner < SIZE) & (channels < CHANNELS))[None, :]
    return row.to(tl.int64), offset, channels, real


@triton.jit(do_not_specialize=["tokens"])
def _convolve(
    x,
    weight,
    offsets,
    places,
    store,
    out,
    tokens,
    x_stride,
    scale,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    QUERIES: tl.constexpr,
    EPS: tl.constexpr,
    STORED: tl.constexpr,
    ROWS: tl.constexpr,
):
    block = tl.program_id(1)
    rows, offset, channels, real = _block(offsets, tokens, block, CHANNELS, SIZE, PADDED, ROWS)
    place = tl.load(places + rows, mask=rows < tokens, other=0).to(tl.int64)
    total = _before_silu(
        x, weight, offset, place, store, rows, channels, real, x_stride, CHANNELS, WIDTH, STORED
    )
    y, _ = _unit(total * tl.sigmoid(total), block, scale, QUERIES, EPS)
    tl.store(out + rows[:, None] * CHANNELS + channels[None, :], y, mask=real)


@triton.jit(do_not_specialize=["tokens"])
def _inner_backward(
    grad,
    x,
    weight,
    offsets,
    out,
    tokens,
    x_stride,
    scale,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    QUERIES: tl.constexpr,
    EPS: tl.constexpr,
    ROWS: tl.constexpr,
):
    block = tl.program_id(1)
    rows, offset, channels, real = _block(offsets, tokens, block, CHANNELS, SIZE, PADDED, ROWS)
    total = _before_silu(
        x, weight, offset, rows, x, rows, channels, real, x_stride, CHANNELS, WIDTH, False
    )
    share = tl.sigmoid(total)
    cells = rows[:, None] * CHANNELS + channels[None, :]
    dy = tl.load(grad + cells, mask=real, other=0.0).to(tl.float32)
    y = total * share
    _, inverse = _unit(y, block, scale, QUERIES, EPS)
    if block < 2 * QUERIES:
        size = tl.sum(y * y, 1) + EPS
        dy = (dy - y * (tl.sum(dy * y, 1) / size)[:, None]) * inverse[:, None]
    tl.store(out + cells, dy * share * (1 + total * (1 - share)), mask=real)


@triton.jit(do_not_specialize=["tokens"])
def _spread_backward(
    inner,
    weight,
    offsets,
    out,
    tokens,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    within = tl.arange(0, BLOCK)
    channels = tl.program_id(1) * SIZE + within
    there = (within < SIZE) & (channels < CHANNELS)
    rows = row.to(tl.int64)
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for lag in tl.static_range(WIDTH):
        later = row + lag
        offset = tl.load(offsets + later, mask=later < tokens, other=-1)
        real = (offset >= lag)[:, None] & there[None, :]
        some = tl.load(
            inner + (rows + lag)[:, None] * CHANNELS + channels[None, :], mask=real, other=0.0
        )
        factor = tl.load(weight + channels * WIDTH + WIDTH - 1 - lag, mask=there, other=0.0)
        total += some.to(tl.float32) * factor[None, :]
    inside = (row < tokens)[:, None] & there[None, :]
    tl.store(out + rows[:, None] * CHANNELS + channels[None, :], total, mask=inside)


@triton.jit
def _keep_last(
    x,
    store,
    bounds,
    x_stride,
    REACH: tl.constexpr,
    SLOTS: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    stretch = tl.program_id(0)
    first, count = tl.load(bounds + stretch * 3), tl.load(bounds + stretch * 3 + 1)
    place = tl.load(bounds + stretch * 3 + 2).to(tl.int64)
    slot = tl.arange(0, SLOTS)
    channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    position = count - REACH + slot
    inside = (slot < REACH)[:, None] & (channels < CHANNELS)[None, :]
    row = (first + position).to(tl.int64)
    new = tl.load(
        x + row[:, None] * x_stride + channels[None, :],
        mask=inside & (position >= 0)[:, None],
        other=0.0,
    )
    own = store + place * REACH * CHANNELS
    old = tl.load(
        own + (slot + count)[:, None] * CHANNELS + channels[None, :],
        mask=inside & (position < 0)[:, None],
        other=0.0,
    )
    # Whoever writes a slot is not who reads it.
    tl.debug_barrier()
    kept = tl.where((position >= 0)[:, None], new, old)
    tl.store(own + slot[:, None] * CHANNELS + channels[None, :], kept, mask=inside)


@triton.jit
def _step(
    x,
    weight,
    places,
    store,
    out,
    x_stride,
    scale,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    QUERIES: tl.constexpr,
    EPS: tl.constexpr,
    SLOTS: tl.constexpr,
):
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    inner, slot = tl.arange(0, PADDED), tl.arange(0, SLOTS)
    channels = block * SIZE + inner
    there = (inner < SIZE) & (channels < CHANNELS)
    place = tl.load(places + row).to(tl.int64)
    own = store + place * (WIDTH - 1) * CHANNELS
    earlier = (slot < WIDTH - 1)[:, None] & there[None, :]
    window = tl.load(own + slot[:, None] * CHANNELS + channels[None, :], mask=earlier, other=0.0)
    last = tl.load(x + row * x_stride + channels, mask=there, other=0.0)
    window = tl.where((slot == WIDTH - 1)[:, None], last[None, :], window)
    factor = tl.load(
        weight + channels[None, :] * WIDTH + slot[:, None],
        mask=(slot < WIDTH)[:, None] & there[None, :],
        other=0.0,
    )
    total = tl.sum(window.to(tl.float32) * factor, 0)[None, :]
    y, _ = _unit(total * tl.sigmoid(total), block, scale, QUERIES, EPS)
    tl.store(out + row * CHANNELS + channels[None, :], y, mask=there[None, :])
    tl.debug_barrier()
    moved = ((slot > 0) & (slot < WIDTH))[:, None] & there[None, :]
    tl.store(own + (slot - 1)[:, None] * CHANNELS + channels[None, :], window, mask=moved)
