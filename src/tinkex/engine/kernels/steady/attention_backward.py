"""Triton kernels for the backward pass of attention over packed sequences.

Two kernels, neither of which adds to what another program writes: one goes from a tile of queries
over all keys it sees, one from a block of keys over all queries that see it. Tiles and blocks are
counted from a sequence's start, so that its gradients depend on nothing beside it.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from tinkex.engine.kernels.steady.attention import (
    LOG2_E,
    ROWS,
    keys_of,
    lanes_of,
    queries_of,
    tile_rows,
)

_BLOCK = 64


def key_tiles(lengths: Sequence[int]) -> NDArray[np.int32]:
    """Blocks of keys of sequences laid end to end, int32 [blocks, 4]: first row, end of the block,
    end of the sequence, and whether there is one."""
    found, start = [], 0
    for length in lengths:
        stop = start + length
        found += [(at, min(at + _BLOCK, stop), stop, 1) for at in range(start, stop, _BLOCK)]
        start = stop
    return np.array(found, np.int32).reshape(-1, 4)


def gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, cut: Tensor,
    blocks: Tensor, window: int | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Of queries, keys and values, given that of `out`; `sums` as `attend` left them, `cut` its
    tiles, `blocks` as `key_tiles` makes them."""
    (rows, heads, size), kv_heads = q.shape, k.shape[1]
    grad = grad.contiguous()
    dq = torch.zeros(rows, heads, size, dtype=q.dtype, device=q.device)
    dk, dv = (torch.zeros(k.shape, dtype=k.dtype, device=k.device) for _ in range(2))
    inner = torch.empty_like(sums)
    group = heads // kv_heads
    constants = {
        "GROUP": group, "LANES": lanes_of(group), "HEADS": heads, "KV_HEADS": kv_heads,
        "SIZE": size, "PADDED": max(16, triton.next_power_of_2(size)), "WINDOW": window or 0,
        "ROWS": ROWS, "BLOCK": _BLOCK, "num_warps": 4 if size <= 64 else 8, "num_stages": 2,
    }  # fmt: skip
    scales = (size**-0.5 * LOG2_E, size**-0.5)
    strides = (q.stride(0), q.stride(1), k.stride(0), v.stride(0))
    _queries[kv_heads, len(cut)](
        grad, q, k, v, out, sums, inner, cut, dq, *scales, *strides, **constants
    )
    _keys[kv_heads, len(blocks)](
        grad, q, k, v, sums, inner, blocks, dk, dv, *scales, *strides, **constants
    )
    return dq, dk, dv


@triton.jit
def _queries(
    grad,
    q,
    k,
    v,
    out,
    sums,
    inner,
    cut,
    dq,
    scale,
    plain_scale,
    q_stride,
    head_stride,
    k_stride,
    v_stride,
    GROUP: tl.constexpr,
    LANES: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    WINDOW: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    kv_head, tile = tl.program_id(0), cut + tl.program_id(1) * 4
    first, count = tl.load(tile), tl.load(tile + 1)
    position, base = tl.load(tile + 2), tl.load(tile + 3)
    if count == 0:
        return
    places, seen = tl.arange(0, PADDED), tl.arange(0, BLOCK)
    own, row, head, number, known, real = tile_rows(
        first, count, kv_head, GROUP, LANES, HEADS, SIZE, PADDED, ROWS
    )
    dense = number[:, None] * SIZE + places[None, :]
    query = queries_of(q, row, head, real, q_stride, head_stride, PADDED)
    slope = tl.load(grad + dense, mask=real, other=0.0)
    mixed = tl.load(out + dense, mask=real, other=0.0)
    along = tl.sum(slope.to(tl.float32) * mixed.to(tl.float32), 1)
    tl.store(inner + number, along, mask=known)
    level = tl.load(sums + number, mask=known, other=0.0)
    begin, stop = 0, position + count
    if WINDOW > 0:
        begin = tl.maximum(position - WINDOW + 1, 0) // BLOCK * BLOCK
    found = tl.zeros([ROWS, PADDED], tl.float32)
    for at in range(begin, stop, BLOCK):
        key_at = at + seen
        token = (base + key_at).to(tl.int64)
        inside = key_at < stop
        key, value = keys_of(k, v, token, inside, kv_head, k_stride, v_stride, SIZE, PADDED)
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        distance = (position + own)[:, None] - key_at[None, :]
        visible = (distance >= 0) & inside[None, :] & known[:, None]
        if WINDOW > 0:
            visible = visible & (distance < WINDOW)
        weight = tl.where(visible, tl.exp2(score - level[:, None]), 0.0)
        to_weight = tl.dot(slope, tl.trans(value), input_precision="ieee")
        to_score = weight * (to_weight - along[:, None])
        found = tl.dot(to_score.to(key.dtype), key, found, input_precision="ieee")
    tl.store(dq + dense, found * plain_scale, mask=real)


@triton.jit
def _keys(
    grad,
    q,
    k,
    v,
    sums,
    inner,
    blocks,
    dk,
    dv,
    scale,
    plain_scale,
    q_stride,
    head_stride,
    k_stride,
    v_stride,
    GROUP: tl.constexpr,
    LANES: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    WINDOW: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    kv_head, tile = tl.program_id(0), blocks + tl.program_id(1) * 4
    first, end, stop = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2)
    if tl.load(tile + 3) == 0:
        return
    places, key_row = tl.arange(0, PADDED), first + tl.arange(0, BLOCK)
    token = key_row.to(tl.int64)
    inside = key_row < end
    key, value = keys_of(k, v, token, inside, kv_head, k_stride, v_stride, SIZE, PADDED)
    to_key = tl.zeros([BLOCK, PADDED], tl.float32)
    to_value = tl.zeros([BLOCK, PADDED], tl.float32)
    last = stop
    if WINDOW > 0:
        last = tl.minimum(stop, end + WINDOW - 1)
    for at in range(first, last, ROWS // LANES):
        own, row, head, number, known, real = tile_rows(
            at, last - at, kv_head, GROUP, LANES, HEADS, SIZE, PADDED, ROWS
        )
        query = queries_of(q, row, head, real, q_stride, head_stride, PADDED)
        slope = tl.load(grad + number[:, None] * SIZE + places[None, :], mask=real, other=0.0)
        level = tl.load(sums + number, mask=known, other=0.0)
        along = tl.load(inner + number, mask=known, other=0.0)
        score = tl.dot(key, tl.trans(query), input_precision="ieee") * scale
        distance = (at + own)[None, :] - key_row[:, None]
        visible = (distance >= 0) & inside[:, None] & known[None, :]
        if WINDOW > 0:
            visible = visible & (distance < WINDOW)
        weight = tl.where(visible, tl.exp2(score - level[None, :]), 0.0)
        to_value = tl.dot(weight.to(slope.dtype), slope, to_value, input_precision="ieee")
        to_weight = tl.dot(value, tl.trans(slope), input_precision="ieee")
        to_score = weight * (to_weight - along[None, :])
        to_key = tl.dot(to_score.to(query.dtype), query, to_key, input_precision="ieee")
    width = inside[:, None] & (places < SIZE)[None, :]
    dense = token[:, None] * (KV_HEADS * SIZE) + kv_head * SIZE + places[None, :]
    tl.store(dk + dense, to_key * plain_scale, mask=width)
    tl.store(dv + dense, to_value, mask=width)
