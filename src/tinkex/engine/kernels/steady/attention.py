"""Triton kernels for causal attention: a query's bits depend on its own sequence alone.

One form serves training, prompt chunks and decode steps. Keys are taken in blocks counted from the
sequence's start, and every `split` tokens what was found is folded into a running result. Blocks
and splits that a query does not see change nothing of it, to the bit. Where tiles of queries are
few their splits are computed side by side and folded afterwards, in the same order by the same
operations. A tile holds a few tokens with all heads that share a key head. Keys and values lie end
to end, as in training, or in pages.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

ROWS = 64
"""Of a tile: tokens times heads."""

LOG2_E = 1.4426950408889634
MAX_SPLITS = 32
_LEAST_SPLIT = 512
_PROGRAMS = 264
"""Two for every multiprocessor of a large card."""


class Keys(NamedTuple):
    """Where keys and values [·, kv heads, D] lie, dense but for the first dimension. Without a
    table a tile's `column` is the first row of its sequence; with one, its page of position p is
    `table[column · column_stride + p // page · page_stride]`."""

    k: Tensor  # keys
    v: Tensor  # values
    table: Tensor | None = None  # pages by column; None: sequences lie end to end
    page: int = 0  # tokens of a page
    column_stride: int = 0  # between two columns of the table
    page_stride: int = 0  # between two pages of a column


def split_of(context: int) -> int:
    """Tokens after which results are folded, for a model of so many positions."""
    return max(_LEAST_SPLIT, -(-context // MAX_SPLITS // ROWS) * ROWS)


def lanes_of(group: int) -> int:
    """Rows of a tile that each token takes, for so many heads that share a key head."""
    return int(triton.next_power_of_2(group))


def tiles(chunks: Sequence[tuple[int, int, int, int]], group: int) -> NDArray[np.int32]:
    """Chunks (first row, tokens, first position, column) cut into tiles, int32 [tiles, 4]: those
    that see most first, so that none of them starts last. A tile of no tokens is none."""
    height = ROWS // lanes_of(group)
    cut = [
        (row + at, min(height, count - at), position + at, column)
        for row, count, position, column in chunks
        for at in range(0, count, height)
    ]
    return np.array(sorted(cut, key=lambda tile: -tile[2]), np.int32).reshape(-1, 4)


def attend(
    q: Tensor, keys: Keys, cut: Tensor, window: int | None, split: int, splits: int,
    sums: Tensor | None = None, programs: int | None = None,
) -> Tensor:  # fmt: skip
    """What the tiles' rows of q [N, heads, D] see: all tokens up to their own.

    `splits` bounds those of any tile. `sums` float32 [N, heads] gets the logarithms of the sums of
    weights, to base 2. `programs` share a tile's splits; as many as fill the device if not said.
    """
    (rows, heads, size), kv_heads = q.shape, keys.k.shape[1]
    out = torch.empty(rows, heads, size, dtype=q.dtype, device=q.device)
    shared = programs or min(splits, int(triton.cdiv(_PROGRAMS, max(1, len(cut)) * kv_heads)))
    parts = ends = out
    if shared > 1:
        parts = torch.empty(rows, heads, splits, size, dtype=torch.float32, device=q.device)
        ends = torch.empty(rows, heads, splits, 2, dtype=torch.float32, device=q.device)
    table = cut if keys.table is None else keys.table
    group = heads // kv_heads
    constants = {
        "GROUP": group, "LANES": lanes_of(group), "HEADS": heads, "SIZE": size,
        "PADDED": max(16, triton.next_power_of_2(size)), "WINDOW": window or 0, "SPLIT": split,
        "SPLITS": splits, "ROWS": ROWS, "BLOCK": _block(size), "KEEP": sums is not None,
        "num_warps": 4 if size <= 128 else 8, "enable_fp_fusion": False,
    }  # fmt: skip
    kept = out if sums is None else sums
    scale = size**-0.5 * LOG2_E
    _attend[kv_heads, len(cut), shared](
        q, keys.k, keys.v, table, cut, out, parts, ends, kept, scale, q.stride(0), q.stride(1),
        keys.k.stride(0), keys.v.stride(0), keys.column_stride, keys.page_stride, PAGE=keys.page,
        PROGRAMS=shared, num_stages=3 if size <= 128 else 2, **constants,
    )  # fmt: skip
    if shared > 1:
        _join[kv_heads, len(cut)](cut, out, parts, ends, kept, scale, **constants)
    return out


def _block(size: int) -> int:
    return 64 if size <= 128 else 32


@triton.jit
def tile_rows(
    first,
    count,
    kv_head,
    GROUP: tl.constexpr,
    LANES: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
):
    """A tile's rows, which are `count` tokens from row `first` on by the heads of a group: the
    token of each counted from the first, its row of q and its head, its number among all rows by
    heads, which of them there are, and which of their cells."""
    lane, places = tl.arange(0, ROWS), tl.arange(0, PADDED)
    own, member = lane // LANES, lane % LANES
    known = (own < count) & (member < GROUP)
    real = known[:, None] & (places < SIZE)[None, :]
    row, head = (first + own).to(tl.int64), kv_head * GROUP + member
    return own, row, head, row * HEADS + head, known, real


@triton.jit
def queries_of(q, row, head, real, q_stride, head_stride, PADDED: tl.constexpr):
    place = (row * q_stride + head * head_stride)[:, None] + tl.arange(0, PADDED)[None, :]
    return tl.load(q + place, mask=real, other=0.0)


@triton.jit
def keys_of(
    k, v, token, inside, kv_head, k_stride, v_stride, SIZE: tl.constexpr, PADDED: tl.constexpr
):
    """Keys and values of a block of tokens."""
    places = tl.arange(0, PADDED)
    width = inside[:, None] & (places < SIZE)[None, :]
    within = kv_head * SIZE + places[None, :]
    key = tl.load(k + token[:, None] * k_stride + within, mask=width, other=0.0)
    value = tl.load(v + token[:, None] * v_stride + within, mask=width, other=0.0)
    return key, value


@triton.jit(do_not_specialize=["column_stride", "page_stride"])
def _attend(
    q,
    k,
    v,
    table,
    cut,
    out,
    parts,
    ends,
    sums,
    scale,
    q_stride,
    head_stride,
    k_stride,
    v_stride,
    column_stride,
    page_stride,
    GROUP: tl.constexpr,
    LANES: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    PAGE: tl.constexpr,
    WINDOW: tl.constexpr,
    SPLIT: tl.constexpr,
    SPLITS: tl.constexpr,
    PROGRAMS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    KEEP: tl.constexpr,
):
    kv_head, tile, part = tl.program_id(0), cut + tl.program_id(1) * 4, tl.program_id(2)
    first, count = tl.load(tile), tl.load(tile + 1)
    position, column = tl.load(tile + 2), tl.load(tile + 3)
    if count == 0:
        return
    places, seen = tl.arange(0, PADDED), tl.arange(0, BLOCK)
    own, row, head, number, known, real = tile_rows(
        first, count, kv_head, GROUP, LANES, HEADS, SIZE, PADDED, ROWS
    )
    query = queries_of(q, row, head, real, q_stride, head_stride, PADDED)
    stop, begin = position + count, 0
    if WINDOW > 0:
        begin = tl.maximum(position - WINDOW + 1, 0) // BLOCK * BLOCK
    first_split, last_split = begin // SPLIT, (stop - 1) // SPLIT
    high = tl.full([ROWS], -1e30, tl.float32)
    whole = tl.zeros([ROWS], tl.float32)
    found = tl.zeros([ROWS, PADDED], tl.float32)
    for split in range(first_split + part, last_split + 1, PROGRAMS):
        best = tl.full([ROWS], -1e30, tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        mixed = tl.zeros([ROWS, PADDED], tl.float32)
        for at in range(
            tl.maximum(split * SPLIT, begin), tl.minimum(split * SPLIT + SPLIT, stop), BLOCK
        ):
            key_at = at + seen
            inside = key_at < stop
            if PAGE > 0:
                held = tl.load(
                    table + column * column_stride + key_at // PAGE * page_stride,
                    mask=inside,
                    other=0,
                )
                token = held.to(tl.int64) * PAGE + key_at % PAGE
            else:
                token = (column + key_at).to(tl.int64)
            key, value = keys_of(k, v, token, inside, kv_head, k_stride, v_stride, SIZE, PADDED)
            score = tl.dot(query, tl.trans(key), input_precision="ieee")
            distance = (position + own)[:, None] - key_at[None, :]
            visible = (distance >= 0) & inside[None, :]
            if WINDOW > 0:
                visible = visible & (distance < WINDOW)
            score = tl.where(visible, score, -1e30)
            higher = tl.maximum(best, tl.max(score, 1))
            weight = tl.where(visible, tl.exp2((score - higher[:, None]) * scale), 0.0)
            fade = tl.exp2((best - higher) * scale)
            total = tl.fma(total, fade, tl.sum(weight, 1))
            mixed = tl.dot(
                weight.to(value.dtype), value, mixed * fade[:, None], input_precision="ieee"
            )
            best = higher
        if PROGRAMS == 1:
            high, whole, found = _folded(high, whole, found, best, total, mixed, scale)
        elif first_split == last_split:
            _finish(out, sums, number, places, known, real, best, total, mixed, scale, SIZE, KEEP)
        else:
            piece = number * SPLITS + split
            tl.store(parts + piece[:, None] * SIZE + places[None, :], mixed, mask=real)
            tl.store(ends + piece * 2, best, mask=known)
            tl.store(ends + piece * 2 + 1, total, mask=known)
    if PROGRAMS == 1:
        _finish(out, sums, number, places, known, real, high, whole, found, scale, SIZE, KEEP)


@triton.jit
def _join(
    cut,
    out,
    parts,
    ends,
    sums,
    scale,
    GROUP: tl.constexpr,
    LANES: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    WINDOW: tl.constexpr,
    SPLIT: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    KEEP: tl.constexpr,
):
    kv_head, tile = tl.program_id(0), cut + tl.program_id(1) * 4
    first, count, position = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2)
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(position - WINDOW + 1, 0) // BLOCK * BLOCK
    first_split, last_split = begin // SPLIT, (position + count - 1) // SPLIT
    if (count == 0) | (first_split == last_split):
        return
    places = tl.arange(0, PADDED)
    _, _, _, number, known, real = tile_rows(
        first, count, kv_head, GROUP, LANES, HEADS, SIZE, PADDED, ROWS
    )
    high = tl.full([ROWS], -1e30, tl.float32)
    whole = tl.zeros([ROWS], tl.float32)
    found = tl.zeros([ROWS, PADDED], tl.float32)
    for split in range(first_split, last_split + 1):
        piece = number * SPLITS + split
        mixed = tl.load(parts + piece[:, None] * SIZE + places[None, :], mask=real, other=0.0)
        best = tl.load(ends + piece * 2, mask=known, other=-1e30)
        total = tl.load(ends + piece * 2 + 1, mask=known, other=0.0)
        high, whole, found = _folded(high, whole, found, best, total, mixed, scale)
    _finish(out, sums, number, places, known, real, high, whole, found, scale, SIZE, KEEP)


@triton.jit
def _folded(high, whole, found, best, total, mixed, scale):
    """The running result with that of one more split."""
    higher = tl.maximum(high, best)
    before, now = tl.exp2((high - higher) * scale), tl.exp2((best - higher) * scale)
    whole = tl.fma(whole, before, total * now)
    before = tl.broadcast_to(before[:, None], found.shape)
    found = tl.fma(found, before, mixed * now[:, None])
    return higher, whole, found


@triton.jit
def _finish(
    out,
    sums,
    number,
    places,
    known,
    real,
    high,
    whole,
    found,
    scale,
    SIZE: tl.constexpr,
    KEEP: tl.constexpr,
):
    # A row that only pads the tile may see nothing at all.
    whole = tl.maximum(whole, 1e-30)
    tl.store(out + number[:, None] * SIZE + places[None, :], found / whole[:, None], mask=real)
    if KEEP:
        level = tl.fma(high, tl.zeros_like(high) + scale, tl.log2(whole))
        tl.store(sums + number, level, mask=known)
