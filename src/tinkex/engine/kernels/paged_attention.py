"""Triton kernels for the attention of single tokens over the pages of their sequences.

One program takes all query heads that share a key head, for one row and one split of its sequence
(flash decoding), and reads each key and value once, where it lies. How many splits there may be is
fixed, how many are used follows from a sequence's length: a few long ones fill the device, short
ones pay for no joining. Every size that changes from step to step is read from tensors: a captured
graph stays right.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinkex.engine.kernels import dependent_launch

_PROGRAMS = 264
"""Two for every multiprocessor of a large card; more splits only cost more joining."""

_MAX_SPLITS = 32
MIN_SHARE = 128
"""Tokens of a sequence below which a further split costs more than it brings."""

_BLOCK = 64
_WARPS = 4
_STAGES = 3


def write(tokens: Tensor, places: Tensor, k: Tensor, v: Tensor) -> None:
    """Put k and v [N, kv heads, D] at `places` of a layer's [places, 2, kv heads, D]."""
    rows, heads, size = k.shape
    _write[(rows,)](
        tokens, places, k, v, k.stride(0), v.stride(0), WIDTH=heads * size,
        BLOCK=triton.next_power_of_2(heads * size), **dependent_launch.options(),
    )  # fmt: skip


def attend(
    q: Tensor, tokens: Tensor, table: Tensor, positions: Tensor, page_size: int,
    window: int | None, sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """[N, heads, D] queries, row n at `positions[n]`, over all tokens up to their own. A head's
    sink, float32 [heads], is one more logit, of a value of zero.

    `table` [pages, rows] holds in column n the pages of row n's sequence.
    """
    rows, heads, size = q.shape
    kv_heads = tokens.shape[2]
    splits = splits_for(rows * kv_heads)
    out = torch.empty(rows, heads, size, dtype=q.dtype, device=q.device)
    parts, sums = out, out
    if splits > 1:
        parts = torch.empty(rows, heads, splits, size, dtype=torch.float32, device=q.device)
        sums = torch.empty(rows, heads, splits, 2, dtype=torch.float32, device=q.device)
    padded = max(16, triton.next_power_of_2(size))
    group = heads // kv_heads
    _attend[kv_heads, rows, splits](
        q, tokens, table, positions, q if sinks is None else sinks, out, parts, sums, size**-0.5,
        q.stride(0), table.stride(0), GROUP=group, TILE=max(16, triton.next_power_of_2(group)),
        KV_HEADS=kv_heads, SIZE=size, PADDED=padded, PAGE=page_size, SPLITS=splits,
        WINDOW=window or 0, SINKS=sinks is not None, SHARE=MIN_SHARE, BLOCK=_BLOCK,
        num_warps=_WARPS, num_stages=_STAGES if size <= 128 else 2, **dependent_launch.options(),
    )  # fmt: skip
    if splits > 1:
        _join[rows, heads](
            parts, sums, positions, q if sinks is None else sinks, out, SIZE=size, PADDED=padded,
            SPLITS=splits, WINDOW=window or 0, SINKS=sinks is not None, SHARE=MIN_SHARE,
            BLOCK=_BLOCK, **dependent_launch.options(),
        )  # fmt: skip
    return out


def splits_for(programs: int) -> int:
    wanted = triton.next_power_of_2(triton.cdiv(_PROGRAMS, programs))
    return int(min(_MAX_SPLITS, wanted))


@triton.jit
def _write(
    tokens,
    places,
    k,
    v,
    k_stride,
    v_stride,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):
    dependent_launch.begin(CHAINED)
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    target = tokens + tl.load(places + row).to(tl.int64) * 2 * WIDTH + columns
    tl.store(target, tl.load(k + row * k_stride + columns, mask=inside), mask=inside)
    tl.store(target + WIDTH, tl.load(v + row * v_stride + columns, mask=inside), mask=inside)


@triton.jit(do_not_specialize=["table_stride"])
def _attend(
    q,
    tokens,
    table,
    positions,
    sinks,
    out,
    parts,
    sums,
    scale,
    q_stride,
    table_stride,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    PAGE: tl.constexpr,
    SPLITS: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    SHARE: tl.constexpr,
    BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):
    dependent_launch.begin(CHAINED)
    kv_head, row, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    heads, places, seen = tl.arange(0, TILE), tl.arange(0, PADDED), tl.arange(0, BLOCK)
    length = tl.load(positions + row) + 1
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW, 0)
    share = _share(length - first, SPLITS, SHARE, BLOCK)
    start = first + split * share
    stop = tl.minimum(start + share, length)
    if start >= length:
        return
    real = (heads[:, None] < GROUP) & (places[None, :] < SIZE)
    head = kv_head * GROUP + heads
    query = tl.load(
        q + row * q_stride + head[:, None] * SIZE + places[None, :], mask=real, other=0.0
    )
    best = tl.full([TILE], -1e30, tl.float32)
    total = tl.zeros([TILE], tl.float32)
    if SINKS and SPLITS == 1:
        best = tl.load(sinks + head, mask=heads < GROUP, other=0.0)
        total += 1.0
    mixed = tl.zeros([TILE, PADDED], tl.float32)
    for at in range(start, stop, BLOCK):
        position = at + seen
        inside = position < stop
        page = tl.load(table + (position // PAGE) * table_stride + row, mask=inside, other=0)
        token = (page.to(tl.int64) * PAGE + position % PAGE) * (2 * KV_HEADS * SIZE)
        lane = token[:, None] + kv_head * SIZE + places[None, :]
        whole = inside[:, None] & (places[None, :] < SIZE)
        key = tl.load(tokens + lane, mask=whole, other=0.0)
        value = tl.load(tokens + lane + KV_HEADS * SIZE, mask=whole, other=0.0)
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        score = tl.where(inside[None, :], score, -1e30)
        higher = tl.maximum(best, tl.max(score, 1))
        weight = tl.where(inside[None, :], tl.exp(score - higher[:, None]), 0.0)
        fade = tl.exp(best - higher)
        total = total * fade + tl.sum(weight, 1)
        mixed = mixed * fade[:, None]
        mixed = tl.dot(weight.to(value.dtype), value, mixed, input_precision="ieee")
        best = higher
    number = row * KV_HEADS * GROUP + head
    if SPLITS == 1:
        target = out + number[:, None] * SIZE + places[None, :]
        tl.store(target, mixed / total[:, None], mask=real)
    else:
        number = number * SPLITS + split
        tl.store(parts + number[:, None] * SIZE + places[None, :], mixed, mask=real)
        tl.store(sums + number * 2, best, mask=heads < GROUP)
        tl.store(sums + number * 2 + 1, total, mask=heads < GROUP)


@triton.jit
def _share(length, SPLITS: tl.constexpr, SHARE: tl.constexpr, BLOCK: tl.constexpr):
    """Tokens of a split, whole blocks of them; a sequence may need fewer splits than there are."""
    return tl.cdiv(tl.maximum(tl.cdiv(length, SPLITS), SHARE), BLOCK) * BLOCK


@triton.jit
def _join(
    parts,
    sums,
    positions,
    sinks,
    out,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    SPLITS: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    SHARE: tl.constexpr,
    BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):
    dependent_launch.begin(CHAINED)
    row = tl.program_id(0)
    head = row * tl.num_programs(1) + tl.program_id(1)
    length = tl.load(positions + row) + 1
    if WINDOW > 0:
        length = tl.minimum(length, WINDOW)
    splits, places = tl.arange(0, SPLITS), tl.arange(0, PADDED)
    used = splits < tl.cdiv(length, _share(length, SPLITS, SHARE, BLOCK))
    inside = places < SIZE
    best = tl.load(sums + (head * SPLITS + splits) * 2, mask=used, other=-1e30)
    total = tl.load(sums + (head * SPLITS + splits) * 2 + 1, mask=used, other=0.0)
    highest = tl.max(best, 0)
    extra = 0.0
    if SINKS:
        sink = tl.load(sinks + tl.program_id(1))
        highest = tl.maximum(highest, sink)
        extra = tl.exp(sink - highest)
    weight = tl.where(used, tl.exp(best - highest), 0.0)
    part = tl.load(
        parts + (head * SPLITS + splits)[:, None] * SIZE + places[None, :],
        mask=used[:, None] & inside[None, :],
        other=0.0,
    )
    mixed = tl.sum(part * weight[:, None], 0) / (tl.sum(total * weight, 0) + extra)
    tl.store(out + head * SIZE + places, mixed, mask=inside)
