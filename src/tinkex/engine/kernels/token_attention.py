"""A Triton kernel for all of a single token's attention between two matrix products.

In a decode step each operation of attention is so small that to start it takes as long as to do it.
Here one launch makes queries and the new key ready (`heads`), writes key and value to their page,
attends over the pages (as `paged_attention` does) and joins what splits of a sequence found; a gate
on what comes out, where a family has one, is applied too.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinkex.engine.kernels import dependent_launch, paged_attention
from tinkex.engine.kernels.heads import Shape

_BLOCK = 64
_JOINED = 4
"""Splits whose parts are read at once."""


class Pages(NamedTuple):
    """Where single tokens belong and what they see."""

    tokens: Tensor  # a layer's keys and values [places, 2, kv heads, D]
    places: Tensor  # of the tokens themselves, int32 [N]
    table: Tensor  # [pages, rows]: column n has the pages of row n's sequence
    positions: Tensor  # of the tokens in their sequences, int32 [N]
    page_size: int  # tokens of a page
    window: int | None  # how far a token sees; None: to the first


def counters(rows: int, kv_heads: int, device: torch.device) -> Tensor:
    """What `attend` counts finished splits in; all zero between two calls."""
    return torch.zeros(rows * kv_heads, dtype=torch.int32, device=device)


def attend(
    qkv: Tensor, plus: Tensor | None, norms: tuple[Tensor, Tensor] | None,
    angles: tuple[Tensor, Tensor] | None, sinks: Tensor | None, shape: Shape, pages: Pages,
    counts: Tensor,
) -> Tensor:  # fmt: skip
    """[N, heads · D] from qkv + plus [N, sources · D] as projected, both dense; see `heads.ready`
    and `paged_attention.attend`."""
    rows, size = len(qkv), shape.size
    splits = paged_attention.splits_for(rows * shape.kv_heads)
    out = torch.empty(rows, shape.heads * size, dtype=qkv.dtype, device=qkv.device)
    parts, sums = out, out
    if splits > 1:
        parts = torch.empty(rows, shape.heads, splits, size, dtype=torch.float32, device=qkv.device)
        sums = torch.empty(rows, shape.heads, splits, 2, dtype=torch.float32, device=qkv.device)
    group = shape.heads // shape.kv_heads
    _attend[shape.kv_heads, rows, splits](
        qkv, qkv if plus is None else plus, pages.tokens, pages.table, pages.positions,
        pages.places, qkv if sinks is None else sinks, out, parts, sums, counts,
        *(norms or (qkv, qkv)), *(angles or (qkv, qkv)), shape.eps, shape.scale * size**-0.5,
        pages.table.stride(0), PLUS=plus is not None, SOURCES=shape.sources, GROUP=group,
        TILE=max(16, triton.next_power_of_2(group)), KV_HEADS=shape.kv_heads, SIZE=size,
        PADDED=max(16, triton.next_power_of_2(size)), GATED=shape.gated, NORMED=norms is not None,
        ROTATED=0 if angles is None else 2 * angles[0].shape[-1], PAGE=pages.page_size,
        SPLITS=splits, SPLIT_LANES=triton.next_power_of_2(splits), WINDOW=pages.window or 0,
        SINKS=sinks is not None, SHARE=paged_attention.MIN_SHARE, BLOCK=_BLOCK, JOINED=_JOINED,
        num_warps=4, num_stages=3 if size <= 128 else 2, **dependent_launch.options(),
    )  # fmt: skip
    return out


@triton.jit
def _turned(
    x, plus, start, norm, cos, sin, column, eps, SIZE: tl.constexpr, NORMED: tl.constexpr,
    ROTATED: tl.constexpr, PLUS: tl.constexpr,
):  # fmt: skip
    """Heads [heads, columns] of x + plus that begin at `start` [heads], normed and rotated."""
    inside = (column < SIZE)[None, :]
    value = _summed(x, plus, start[:, None] + column[None, :], inside, PLUS)
    if NORMED:
        inverse = (1.0 / tl.sqrt(tl.sum(value * value, 1) / SIZE + eps))[:, None]
        gain = tl.load(norm + column, mask=column < SIZE, other=0.0).to(tl.float32)
        value *= inverse * gain[None, :]
    if ROTATED > 0:
        # Each number's partner is read a second time: nothing moves between threads.
        HALF: tl.constexpr = ROTATED // 2
        other = tl.where(column < HALF, column + HALF, column - HALF)
        other = tl.where(column < ROTATED, other, column)
        turns = column < ROTATED
        real = tl.load(cos + column % HALF, mask=turns, other=1.0).to(tl.float32)
        turn = tl.load(sin + column % HALF, mask=turns, other=0.0).to(tl.float32)
        turn = tl.where(column < HALF, -turn, turn)
        partner = _summed(x, plus, start[:, None] + other[None, :], inside, PLUS)
        if NORMED:
            gain = tl.load(norm + other, mask=column < SIZE, other=0.0).to(tl.float32)
            partner *= inverse * gain[None, :]
        value = value * real[None, :] + partner * turn[None, :]
    return value


@triton.jit
def _summed(x, plus, place, inside, PLUS: tl.constexpr):
    """x + plus there, rounded as the sum would be if it were written."""
    value = tl.load(x + place, mask=inside, other=0.0)
    if PLUS:
        value = value.to(tl.float32) + tl.load(plus + place, mask=inside, other=0.0).to(tl.float32)
    return value.to(x.dtype.element_ty).to(tl.float32)


@triton.jit(do_not_specialize=["table_stride"])
def _attend(
    qkv,
    plus,
    tokens,
    table,
    positions,
    places,
    sinks,
    out,
    parts,
    sums,
    counts,
    q_norm,
    k_norm,
    cos,
    sin,
    eps,
    scale,
    table_stride,
    PLUS: tl.constexpr,
    SOURCES: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    GATED: tl.constexpr,
    NORMED: tl.constexpr,
    ROTATED: tl.constexpr,
    PAGE: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLIT_LANES: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    SHARE: tl.constexpr,
    BLOCK: tl.constexpr,
    JOINED: tl.constexpr,
    CHAINED: tl.constexpr,
):
    kv_head, row, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    lane, column, seen = tl.arange(0, TILE), tl.arange(0, PADDED), tl.arange(0, BLOCK)
    length = tl.load(positions + row) + 1
    place = tl.load(places + row).to(tl.int64)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW, 0)
    share = paged_attention._share(length - first, SPLITS, SHARE, BLOCK)
    used = tl.cdiv(length - first, share)
    start = first + split * share
    dependent_launch.begin(CHAINED)
    if split >= used:
        return
    ASKS: tl.constexpr = KV_HEADS * GROUP
    STEP: tl.constexpr = 2 * SIZE if GATED else SIZE
    own = row.to(tl.int64) * (SOURCES * SIZE)
    heads = kv_head * GROUP + lane
    asks = lane < GROUP
    asked = own + tl.where(asks, heads, 0) * STEP
    cos += row * (ROTATED // 2)
    sin += row * (ROTATED // 2)
    query = _turned(qkv, plus, asked, q_norm, cos, sin, column, eps, SIZE, NORMED, ROTATED, PLUS)
    query = query.to(qkv.dtype.element_ty)
    real = asks[:, None] & (column < SIZE)[None, :]
    best = tl.full([TILE], -1e30, tl.float32)
    total = tl.zeros([TILE], tl.float32)
    if SINKS and SPLITS == 1:
        best = tl.load(sinks + heads, mask=asks, other=0.0)
        total += 1.0
    mixed = tl.zeros([TILE, PADDED], tl.float32)
    # The last token is this one, whose key is not on its page yet.
    for at in range(start, tl.minimum(start + share, length - 1), BLOCK):
        position = at + seen
        inside = position < tl.minimum(start + share, length - 1)
        page = tl.load(table + (position // PAGE) * table_stride + row, mask=inside, other=0)
        token = (page.to(tl.int64) * PAGE + position % PAGE) * (2 * KV_HEADS * SIZE)
        cell = token[:, None] + kv_head * SIZE + column[None, :]
        whole = inside[:, None] & (column < SIZE)[None, :]
        key = tl.load(tokens + cell, mask=whole, other=0.0)
        value = tl.load(tokens + cell + KV_HEADS * SIZE, mask=whole, other=0.0)
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        score = tl.where(inside[None, :], score, -1e30)
        higher = tl.maximum(best, tl.max(score, 1))
        weight = tl.where(inside[None, :], tl.exp(score - higher[:, None]), 0.0)
        fade = tl.exp(best - higher)
        total = total * fade + tl.sum(weight, 1)
        mixed = mixed * fade[:, None]
        mixed = tl.dot(weight.to(value.dtype), value, mixed, input_precision="ieee")
        best = higher
    if split == used - 1:
        made = own + ASKS * STEP + kv_head * SIZE
        one = made + tl.zeros([1], tl.int32)
        key = _turned(qkv, plus, one, k_norm, cos, sin, column, eps, SIZE, NORMED, ROTATED, PLUS)
        key = key.to(qkv.dtype.element_ty)
        beyond = made + KV_HEADS * SIZE + column
        value = _summed(qkv, plus, beyond, column < SIZE, PLUS).to(qkv.dtype.element_ty)
        cell = tokens + place * 2 * KV_HEADS * SIZE + kv_head * SIZE + column
        tl.store(cell[None, :], key, mask=(column < SIZE)[None, :])
        tl.store(cell + KV_HEADS * SIZE, value, mask=column < SIZE)
        score = tl.sum(query.to(tl.float32) * key.to(tl.float32), 1) * scale
        higher = tl.maximum(best, score)
        weight, fade = tl.exp(score - higher), tl.exp(best - higher)
        total = total * fade + weight
        mixed = mixed * fade[:, None] + weight[:, None] * value.to(tl.float32)[None, :]
        best = higher
    number = row * ASKS + heads
    if SPLITS > 1:
        cell = number * SPLITS + split
        tl.store(parts + cell[:, None] * SIZE + column[None, :], mixed, mask=real)
        tl.store(sums + cell * 2, best, mask=asks)
        tl.store(sums + cell * 2 + 1, total, mask=asks)
        tl.debug_barrier()
        counter = counts + row * KV_HEADS + kv_head
        if tl.atomic_add(counter, 1, sem="acq_rel") != used - 1:
            return
        tl.store(counter, 0)
        # Whoever ends last joins all parts, in the order of the splits.
        piece = tl.arange(0, SPLIT_LANES)
        found = sums + (number[:, None] * SPLITS + piece[None, :]) * 2
        known = asks[:, None] & (piece < used)[None, :]
        bests = tl.load(found, mask=known, other=-1e30, cache_modifier=".cg")
        totals = tl.load(found + 1, mask=known, other=0.0, cache_modifier=".cg")
        best = tl.max(bests, 1)
        extra = tl.zeros([TILE], tl.float32)
        if SINKS:
            sink = tl.load(sinks + heads, mask=asks, other=0.0)
            best = tl.maximum(best, sink)
            extra = tl.exp(sink - best)
        total = tl.sum(totals * tl.exp(bests - best[:, None]), 1) + extra
        mixed = tl.zeros([TILE, PADDED], tl.float32)
        for some in range(0, used, JOINED):
            for more in tl.static_range(JOINED):
                turn = tl.full([TILE], more, tl.int32) + some
                spot, here = number * SPLITS + turn, asks & (turn < used)
                its = tl.load(sums + spot * 2, mask=here, other=-1e30, cache_modifier=".cg")
                part = tl.load(
                    parts + spot[:, None] * SIZE + column[None, :],
                    mask=here[:, None] & (column < SIZE)[None, :],
                    other=0.0,
                    cache_modifier=".cg",
                )
                mixed += part * tl.exp(its - best)[:, None]
    mixed = mixed / tl.where(asks, total, 1.0)[:, None]
    if GATED:
        gate = _summed(qkv, plus, asked[:, None] + SIZE + column[None, :], real, PLUS)
        mixed *= tl.sigmoid(gate)
    tl.store(out + number[:, None] * SIZE + column[None, :], mixed, mask=real)
