"""Triton kernel for the attention of prompt chunks over the pages of their sequences.

Flash attention with paged keys: chunks of any number of sequences, each behind any number of cached
tokens, in one launch. A program takes a tile of one chunk's queries for one head and reads keys and
values where they lie; neither a mask nor a copy of the cache is ever made.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

ROWS = 64
LOG2_E = 1.4426950408889634
_BLOCK = 64
_WARPS = 4
_STAGES = 3


def tiles(chunks: Sequence[tuple[int, int, int, int]]) -> NDArray[np.int32]:
    """Chunks (first row, rows, first position, column of the page table) cut into tiles of `ROWS`,
    int32 [tiles, 4]: those that see most first, so that none of them starts last."""
    cut = [
        (row + at, min(ROWS, count - at), position + at, column)
        for row, count, position, column in chunks
        for at in range(0, count, ROWS)
    ]
    return np.array(sorted(cut, key=lambda tile: -tile[2]), np.int32).reshape(-1, 4)


def attend(
    q: Tensor, tokens: Tensor, table: Tensor, cut: Tensor, out: Tensor, page_size: int,
    window: int | None, sinks: Tensor | None = None,
) -> None:  # fmt: skip
    """Write to `out` what the tiles' rows of q [N, heads, D] see: all tokens up to their own, and
    nothing in their head's sink [heads], one more logit.

    `tokens` is a layer's [places, 2, kv heads, D]; `table` [sequences, pages] holds in row c the
    pages of the sequence whose tiles name column c; `cut` is `tiles` on the device.
    """
    heads, size = q.shape[1:]
    kv_heads = tokens.shape[2]
    _attend[heads, len(cut)](
        q, tokens, table, cut, q if sinks is None else sinks, out, size**-0.5 * LOG2_E, q.stride(0),
        q.stride(1), out.stride(0), table.stride(0), GROUP=heads // kv_heads, KV_HEADS=kv_heads,
        SIZE=size, PADDED=max(16, triton.next_power_of_2(size)), PAGE=page_size,
        WINDOW=window or 0, SINKS=sinks is not None, LOG2=LOG2_E, ROWS=ROWS,
        BLOCK=_BLOCK if size <= 128 else _BLOCK // 2, num_warps=_WARPS if size <= 128 else 8,
        num_stages=_STAGES,
    )  # fmt: skip


@triton.jit(do_not_specialize=["table_stride"])
def _attend(
    q,
    tokens,
    table,
    cut,
    sinks,
    out,
    scale,
    q_stride,
    head_stride,
    out_stride,
    table_stride,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    PAGE: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    LOG2: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    head, tile = tl.program_id(0), cut + tl.program_id(1) * 4
    first, count = tl.load(tile), tl.load(tile + 1)
    position, column = tl.load(tile + 2), tl.load(tile + 3)
    own, places = tl.arange(0, ROWS), tl.arange(0, PADDED)
    real = (own < count)[:, None] & (places < SIZE)[None, :]
    rows = (first + own).to(tl.int64)
    query = tl.load(
        q + rows[:, None] * q_stride + head * head_stride + places[None, :], mask=real, other=0.0
    )
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(position - WINDOW + 1, 0) // BLOCK * BLOCK
    # Blocks that every row sees whole need no mask; the window's edge may cut any of them.
    whole = (position + 1) // BLOCK * BLOCK
    if WINDOW > 0:
        whole = begin
    stop = position + count
    best = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    if SINKS:
        best = tl.zeros([ROWS], tl.float32) + tl.load(sinks + head).to(tl.float32) * LOG2
        total += 1.0
    mixed = tl.zeros([ROWS, PADDED], tl.float32)
    pages = table + column * table_stride
    lanes = tokens + head // GROUP * SIZE
    best, total, mixed = _blocks(
        query, pages, lanes, begin, whole, position, stop, scale, best, total, mixed,
        KV_HEADS, SIZE, PADDED, PAGE, WINDOW, ROWS, BLOCK, False,
    )  # fmt: skip
    best, total, mixed = _blocks(
        query, pages, lanes, tl.maximum(begin, whole), stop, position, stop, scale, best, total,
        mixed, KV_HEADS, SIZE, PADDED, PAGE, WINDOW, ROWS, BLOCK, True,
    )  # fmt: skip
    target = out + rows[:, None] * out_stride + head * SIZE + places[None, :]
    # A row that only pads the tile may see nothing at all.
    tl.store(target, mixed / tl.maximum(total, 1e-30)[:, None], mask=real)


@triton.jit
def _blocks(
    query,
    pages,
    lanes,
    begin,
    end,
    position,
    stop,
    scale,
    best,
    total,
    mixed,
    KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    PAGE: tl.constexpr,
    WINDOW: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    MASKED: tl.constexpr,
):
    own, places, seen = tl.arange(0, ROWS), tl.arange(0, PADDED), tl.arange(0, BLOCK)
    for at in range(begin, end, BLOCK):
        at = tl.multiple_of(at, BLOCK)
        key_at = at + seen
        inside = key_at < stop
        page = tl.load(pages + key_at // PAGE, mask=inside, other=0)
        token = (page.to(tl.int64) * PAGE + key_at % PAGE) * (2 * KV_HEADS * SIZE)
        lane = token[:, None] + places[None, :]
        width = (places < SIZE)[None, :] & inside[:, None]
        key = tl.load(lanes + lane, mask=width, other=0.0)
        value = tl.load(lanes + lane + KV_HEADS * SIZE, mask=width, other=0.0)
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        if MASKED:
            distance = (position + own)[:, None] - key_at[None, :]
            visible = (distance >= 0) & inside[None, :]
            if WINDOW > 0:
                visible = visible & (distance < WINDOW)
            score = tl.where(visible, score, -1e30)
        higher = tl.maximum(best, tl.max(score, 1))
        weight = tl.exp2(score - higher[:, None])
        if MASKED:
            weight = tl.where(visible, weight, 0.0)
        fade = tl.exp2(best - higher)
        total = total * fade + tl.sum(weight, 1)
        mixed = tl.dot(weight.to(value.dtype), value, mixed * fade[:, None], input_precision="ieee")
        best = higher
    return best, total, mixed
