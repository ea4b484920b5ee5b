"""Triton kernels for each row's own low-rank product, for any mix of adapters.

Rows of one adapter lie side by side and are cut into segments of up to SEGMENT rows. `shrink` takes
the rows down to the adapter's rank, in slices of the input width; whichever program ends last sums
the slices, always in the same order, so results do not change from run to run. Where an adapter's
factors lie is read from a table on the device: see `adapter_table`. Everything a program must know
is read at once, before it is known whether there is anything to do: waiting is what these cost.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinkex.engine.kernels import dependent_launch

SEGMENT = 16
MAX_RANK = 128
"""Of one module; a larger one's tiles would not fit a multiprocessor's shared memory."""

MODULES = 4
"""Of a slot at most."""

EXPERT_FIELD = 3 + 2 * MODULES
FIELDS = EXPERT_FIELD + 2
"""Of an entry: where A and B lie, A's row length, then offset and rank of each module; of a mixture
of experts also where the factors lie that each expert has of its own, see `pair_adapters`."""

_SLICE = 512
_MAX_SLICES = 16
_RANKS = 128
_CHUNKS = MODULES * MAX_RANK // _RANKS
"""Of an adapter's ranks, taken a program each: those of all modules."""

_BLOCK = 128
_STAGES = 3
_COLUMNS = 256
_WARPS = 4


def counters(segments: int, device: torch.device) -> Tensor:
    """What `shrink` counts finished slices in; all zero between two calls."""
    return torch.zeros(segments, _CHUNKS, dtype=torch.int32, device=device)


def shrink(
    x: Tensor, ranks: int, counts: Tensor, entry: int, table: Tensor, segments: Tensor
) -> Tensor:
    """x @ A for the segments' rows, [rows, ranks]; `ranks` bounds the sum of an adapter's ranks.

    `segments` int32 [2, n] are first row and rows, 0 for none; `table` int64 [n, entries, FIELDS]
    says for each where its adapter lies, all ranks multiples of 16.
    """
    rows, width = x.shape
    slices = min(_MAX_SLICES, triton.cdiv(width, _SLICE))
    thin = torch.empty(rows, ranks, dtype=x.dtype, device=x.device)
    parts = torch.empty(slices, rows, ranks, dtype=torch.float32, device=x.device)
    chunk = min(_RANKS, triton.next_power_of_2(ranks))
    _shrink[segments.shape[1], slices, triton.cdiv(ranks, chunk)](
        x, table, segments, thin, parts, counts, entry, table.shape[1], width, x.stride(0), rows,
        ranks, segments.stride(0), FIELDS=FIELDS, SEGMENT=SEGMENT, RANKS=chunk, SLICES=slices,
        CHUNKS=_CHUNKS, BLOCK=_BLOCK, num_warps=4, num_stages=_STAGES,
        **dependent_launch.options(),
    )  # fmt: skip
    return thin


def expand(
    y: Tensor, thin: Tensor, entry: int, table: Tensor, segments: Tensor, widths: tuple[int, ...],
    rank: int, add: bool,
) -> None:  # fmt: skip
    """y = thin @ B, or y += thin @ B, for the segments' rows; other rows stay as they are.

    The columns of y are those of the modules side by side. `rank` is the largest of any module,
    rounded up to a power of two.
    """
    one, two, three, four = (*widths, 0, 0, 0)[:MODULES]
    tiles = sum(triton.cdiv(width, _COLUMNS) for width in widths)
    _expand[tiles, segments.shape[1]](
        y, table, segments, thin, entry, table.shape[1], y.stride(0), thin.shape[1],
        segments.stride(0), FIELDS=FIELDS, SEGMENT=SEGMENT, MODULES=len(widths), RANK=rank,
        BLOCK=_COLUMNS, ONE=one, TWO=two, THREE=three, FOUR=four, ADD=add,
        ALIGNED=16 if all(width % 16 == 0 for width in widths) else 1, num_warps=_WARPS,
        **dependent_launch.options(),
    )  # fmt: skip


@triton.jit(do_not_specialize=["entry", "row_count", "segment_stride"])
def _shrink(
    x,
    table,
    segments,
    thin,
    parts,
    counts,
    entry,
    entries,
    width,
    x_stride,
    row_count,
    thin_width,
    segment_stride,
    FIELDS: tl.constexpr,
    SEGMENT: tl.constexpr,
    RANKS: tl.constexpr,
    SLICES: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):
    segment, part, chunk = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    info = table + (segment * entries + entry) * FIELDS
    count = tl.load(segments + segment_stride + segment)
    first = tl.load(segments + segment)
    place = tl.load(info)
    total_rank = tl.load(info + 2).to(tl.int32)
    dependent_launch.begin(CHAINED)
    if (count == 0) | (chunk * RANKS >= total_rank):
        return
    a = tl.multiple_of(place.to(tl.pointer_type(x.dtype.element_ty)), 16)
    total_rank = tl.multiple_of(total_rank, 16)
    own, inner = tl.arange(0, SEGMENT), tl.arange(0, BLOCK)
    ranks = chunk * RANKS + tl.arange(0, RANKS)
    rows = first + own
    total = tl.zeros([SEGMENT, RANKS], tl.float32)
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
            a + places[:, None] * total_rank + ranks[None, :],
            mask=real[:, None] & (ranks < total_rank)[None, :],
            other=0.0,
        )
        total = tl.dot(taken, factor, total, input_precision="ieee")
    inside = (own < count)[:, None] & (ranks < total_rank)[None, :]
    target = rows[:, None] * thin_width + ranks[None, :]
    tl.store(parts + part * row_count * thin_width + target, total, mask=inside)
    tl.debug_barrier()
    counter = counts + segment * CHUNKS + chunk
    if tl.atomic_add(counter, 1, sem="acq_rel") == SLICES - 1:
        total = tl.zeros([SEGMENT, RANKS], tl.float32)
        for other in tl.static_range(SLICES):
            total += tl.load(
                parts + other * row_count * thin_width + target,
                mask=inside,
                other=0.0,
                cache_modifier=".cg",
            )
        tl.store(thin + target, total, mask=inside)
        tl.store(counter, 0)


@triton.jit(do_not_specialize=["entry", "segment_stride"])
def _expand(
    y,
    table,
    segments,
    thin,
    entry,
    entries,
    y_stride,
    thin_width,
    segment_stride,
    FIELDS: tl.constexpr,
    SEGMENT: tl.constexpr,
    MODULES: tl.constexpr,
    RANK: tl.constexpr,
    BLOCK: tl.constexpr,
    ONE: tl.constexpr,
    TWO: tl.constexpr,
    THREE: tl.constexpr,
    FOUR: tl.constexpr,
    ADD: tl.constexpr,
    ALIGNED: tl.constexpr,
    CHAINED: tl.constexpr,
):
    dependent_launch.let_next_start(CHAINED)
    tile, segment = tl.program_id(0), tl.program_id(1)
    module = 0
    left = 0
    width = ONE
    column = tile
    first = tl.cdiv(ONE, BLOCK)
    second = first + tl.cdiv(TWO, BLOCK)
    third = second + tl.cdiv(THREE, BLOCK)
    if MODULES > 1:
        if tile >= third:
            module, left, width, column = 3, ONE + TWO + THREE, FOUR, tile - third
        elif tile >= second:
            module, left, width, column = 2, ONE + TWO, THREE, tile - second
        elif tile >= first:
            module, left, width, column = 1, ONE, TWO, tile - first
    left = tl.multiple_of(left, ALIGNED)
    info = table + (segment * entries + entry) * FIELDS
    count = tl.load(segments + segment_stride + segment)
    start = tl.load(segments + segment)
    place = tl.load(info + 1)
    offset = tl.load(info + 3 + 2 * module).to(tl.int32)
    rank = tl.load(info + 4 + 2 * module).to(tl.int32)
    if count == 0:
        dependent_launch.wait(CHAINED)
        return
    b = tl.multiple_of(place.to(tl.pointer_type(thin.dtype.element_ty)), 16)
    offset = tl.multiple_of(offset, 16)
    own, ranks = tl.arange(0, SEGMENT), tl.arange(0, RANK)
    rows = start + own
    columns = column * BLOCK + tl.arange(0, BLOCK)
    factor = tl.load(
        b + (offset + ranks)[:, None] * (ONE + TWO + THREE + FOUR) + (left + columns)[None, :],
        mask=(ranks < rank)[:, None] & (columns < width)[None, :],
        other=0.0,
    )
    # The factor was there before; what it is multiplied with is what the kernel in front makes.
    dependent_launch.wait(CHAINED)
    target = y + rows.to(tl.int64)[:, None] * y_stride + (left + columns)[None, :]
    inside = (own < count)[:, None] & (columns < width)[None, :]
    real = (own < count)[:, None] & (ranks < rank)[None, :]
    source = rows * thin_width + offset
    taken = tl.load(thin + source[:, None] + ranks[None, :], mask=real, other=0.0)
    added = tl.dot(taken, factor, input_precision="ieee")
    if ADD:
        added += tl.load(target, mask=inside, other=0.0)
    tl.store(target, added, mask=inside)
