"""Triton kernels that add each row's own low-rank product, for any mix of adapters.

Rows of one adapter lie side by side and are cut into segments of up to SEGMENT rows. `shrink` takes
the rows down to the adapter's rank, in slices of the input width that `expand` sums; no two
programs add to the same number, so results do not change from run to run. Where an adapter's
factors lie is read from a table on the device: see `adapter_table`.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

SEGMENT = 16
MAX_RANK = 128
"""Of one module; a larger one's tiles would not fit a multiprocessor's shared memory."""

FIELDS = 9
"""Of an entry: where A and B lie, A's row length, then offset and rank of up to three modules."""

_SLICE = 1024
_MAX_SLICES = 8
_COLUMNS = 256


def shrink(x: Tensor, thin: Tensor, entry: int, table: Tensor, segments: Tensor) -> None:
    """thin[s] = x @ A over the s-th slice of the input width; `thin` is made by `slices`.

    `segments` int32 [2, n] are first row and rows, 0 for none; `table` int64 [n, entries, FIELDS]
    says for each where its adapter lies, all ranks multiples of 16.
    """
    slices, rows, modules, rank = thin.shape
    _shrink[segments.shape[1], slices, modules](
        x, table, segments, thin, entry, table.shape[1], x.shape[1], x.stride(0), rows,
        segments.stride(0), FIELDS=FIELDS, SEGMENT=SEGMENT, MODULES=modules, RANK=rank,
        SLICES=slices, BLOCK=128 if x.dtype.itemsize == 2 else 64, num_warps=4,
    )  # fmt: skip


def expand(
    y: Tensor, thin: Tensor, entry: int, table: Tensor, segments: Tensor, widths: tuple[int, ...]
) -> None:
    """y += thin @ B, the columns of y being those of the modules side by side."""
    slices, rows, modules, rank = thin.shape
    one, two, three = (*widths, 0, 0)[:3]
    tiles = sum(triton.cdiv(width, _COLUMNS) for width in widths)
    _expand[segments.shape[1], tiles](
        y, table, segments, thin, entry, table.shape[1], y.stride(0), rows,
        segments.stride(0), FIELDS=FIELDS, SEGMENT=SEGMENT, MODULES=modules, RANK=rank,
        SLICES=slices, BLOCK=_COLUMNS, ONE=one, TWO=two, THREE=three,
        ALIGNED=16 if all(width % 16 == 0 for width in widths) else 1, num_warps=4,
    )  # fmt: skip


def slices(x: Tensor, modules: int, rank: int) -> Tensor:
    """Room for what `shrink` makes of x; `rank` is the largest, rounded up to a power of two."""
    count = min(_MAX_SLICES, triton.cdiv(x.shape[1], _SLICE))
    return torch.empty(count, x.shape[0], modules, rank, dtype=torch.float32, device=x.device)


@triton.jit
def _shrink(
    x,
    table,
    segments,
    thin,
    entry,
    entries,
    width,
    x_stride,
    row_count,
    segment_stride,
    FIELDS: tl.constexpr,
    SEGMENT: tl.constexpr,
    MODULES: tl.constexpr,
    RANK: tl.constexpr,
    SLICES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    segment, part, module = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    count = tl.load(segments + segment_stride + segment)
    if count == 0:
        return
    info = table + (segment * entries + entry) * FIELDS
    rank = tl.load(info + 4 + 2 * module).to(tl.int32)
    if rank == 0:
        return
    a = tl.multiple_of(tl.load(info).to(tl.pointer_type(x.dtype.element_ty)), 16)
    stride = tl.multiple_of(tl.load(info + 2).to(tl.int32), 16)
    offset = tl.multiple_of(tl.load(info + 3 + 2 * module).to(tl.int32), 16)
    rank = tl.multiple_of(rank, 16)
    own, ranks, inner = tl.arange(0, SEGMENT), tl.arange(0, RANK), tl.arange(0, BLOCK)
    rows = tl.load(segments + segment) + own
    total = tl.zeros([SEGMENT, RANK], tl.float32)
    share = tl.cdiv(tl.cdiv(width, SLICES), BLOCK) * BLOCK
    start = part * share
    for at in range(start, tl.minimum(start + share, width), BLOCK):
        places = at + inner
        real = places < width
        taken = tl.load(
            x + rows[:, None] * x_stride + places[None, :],
            mask=(own < count)[:, None] & real[None, :],
            other=0.0,
        )
        factor = tl.load(
            a + places[:, None] * stride + offset + ranks[None, :],
            mask=real[:, None] & (ranks < rank)[None, :],
            other=0.0,
        )
        total = tl.dot(taken, factor, total, input_precision="ieee")
    target = ((part * row_count + rows) * MODULES + module) * RANK
    tl.store(thin + target[:, None] + ranks[None, :], total, mask=(own < count)[:, None])


@triton.jit
def _expand(
    y,
    table,
    segments,
    thin,
    entry,
    entries,
    y_stride,
    row_count,
    segment_stride,
    FIELDS: tl.constexpr,
    SEGMENT: tl.constexpr,
    MODULES: tl.constexpr,
    RANK: tl.constexpr,
    SLICES: tl.constexpr,
    BLOCK: tl.constexpr,
    ONE: tl.constexpr,
    TWO: tl.constexpr,
    THREE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    segment, tile = tl.program_id(0), tl.program_id(1)
    count = tl.load(segments + segment_stride + segment)
    if count == 0:
        return
    module = 0
    left = 0
    width = ONE
    first = tl.cdiv(ONE, BLOCK)
    second = first + tl.cdiv(TWO, BLOCK)
    if MODULES > 1:
        if tile >= second:
            module, left, width, tile = 2, ONE + TWO, THREE, tile - second
        elif tile >= first:
            module, left, width, tile = 1, ONE, TWO, tile - first
    left = tl.multiple_of(left, ALIGNED)
    info = table + (segment * entries + entry) * FIELDS
    rank = tl.load(info + 4 + 2 * module).to(tl.int32)
    if rank == 0:
        return
    b = tl.multiple_of(tl.load(info + 1).to(tl.pointer_type(y.dtype.element_ty)), 16)
    offset = tl.load(info + 3 + 2 * module)
    own, ranks = tl.arange(0, SEGMENT), tl.arange(0, RANK)
    rows = tl.load(segments + segment) + own
    columns = tile * BLOCK + tl.arange(0, BLOCK)
    factor = tl.load(
        b + (offset + ranks)[:, None] * (ONE + TWO + THREE) + (left + columns)[None, :],
        mask=(ranks < rank)[:, None] & (columns < width)[None, :],
        other=0.0,
    )
    target = y + rows.to(tl.int64)[:, None] * y_stride + (left + columns)[None, :]
    inside = (own < count)[:, None] & (columns < width)[None, :]
    before = tl.load(target, mask=inside, other=0.0)
    total = tl.zeros([SEGMENT, RANK], tl.float32)
    for part in tl.static_range(SLICES):
        source = ((part * row_count + rows) * MODULES + module) * RANK
        total += tl.load(
            thin + source[:, None] + ranks[None, :], mask=(own < count)[:, None], other=0.0
        )
    added = tl.dot(total.to(factor.dtype), factor, input_precision="ieee")
    tl.store(target, before + added, mask=inside)
