"""Triton kernels for the low-rank products of any mix of adapters over packed tokens.

A table on the device says where each group's factors and gradients lie and what rank they have, so
adapters of different ranks and modules share every launch, nothing is stacked or padded, and a
captured graph serves whichever adapters the table names at the time. A group is a stretch of rows
that use one adapter; tiles are pieces of groups.

Of a mixture of experts one factor is stacked over experts. Rows then are pairs of a token and an
expert, a group those of one adapter and one expert, and what is thin may lie by token.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinkex.engine.kernels import lora_cuts as cuts

ROWS = 64
"""Of a tile."""

MODULES = 4
"""Of a slot at most."""

FIELDS = 12
"""Of an adapter in a slot's table: addresses of A and its gradient, of B and its gradient for each
module, the rank (0 without an adapter here), and the scaling as the bits of a float32."""

RANK_FIELD = 10
SCALING_FIELD = 11

TILE_FIELDS = 4
"""Of a tile: the adapter's place in the table, first row, end, and expert."""

_BLOCK = 64
_COLUMNS = 128


def shrink(
    x: Tensor, table: Tensor, tiles: Tensor, counts: Tensor, layer: int, widths: tuple[int, ...],
    rank: int, aligned: bool, back: bool, experts: int = 0, *, steady: bool = False,
) -> Tensor:  # fmt: skip
    """x @ A.T, or, going `back`, x @ B: [rows, modules · rank], a module's ranks side by side.

    `table` int64 [adapters, FIELDS]; `tiles` int32 [tiles, TILE_FIELDS]; `widths` are the modules'
    output columns; `rank`, a power of two, is at least every adapter's; `aligned` says that all
    widths and ranks are multiples of 8. Columns beyond an adapter's rank are not written. `experts`
    is how many of the factor there are in a layer, if not one for all. `steady` cuts the inner
    dimension whatever the number of tiles: a row's bits are its own.
    """
    modules = len(widths)
    inside = max(widths) if back else x.shape[1]
    slices = cuts.steady(inside) if steady else cuts.slices(len(tiles) * modules, inside)
    slices = 1 if experts else slices
    thin = torch.empty(len(x), modules * rank, dtype=x.dtype, device=x.device)
    parts = thin
    if slices > 1:
        parts = torch.empty(slices, *thin.shape, dtype=torch.float32, device=x.device)
    _shrink[len(tiles), modules, slices](
        x, table, tiles, thin, parts, counts, layer, x.shape[1], x.stride(0), len(x),
        **_modules(widths), RANK=rank, FIELDS=FIELDS, RANK_FIELD=RANK_FIELD, SLICES=slices,
        EXPERTS=experts or 1, TILE=TILE_FIELDS, LIMIT=MODULES, BACK=back, ALIGNED=_eight(aligned),
        ROWS=ROWS, BLOCK=_BLOCK, num_warps=4, num_stages=3,
    )  # fmt: skip
    return thin


def expand(
    y: Tensor, thin: Tensor, table: Tensor, tiles: Tensor, layer: int, widths: tuple[int, ...],
    rank: int, aligned: bool, back: bool, experts: int = 0, tokens: Tensor | None = None,
) -> None:  # fmt: skip
    """y += scaling · thin @ B.T module by module, or, going `back`, thin @ A of all modules. With
    `tokens` [rows], row i takes the thin row of its token."""
    columns = [y.shape[1]] if back else widths
    count = sum(triton.cdiv(width, _COLUMNS) for width in columns)
    _expand[count, len(tiles)](
        y, thin, table, tiles, tiles if tokens is None else tokens, layer, y.shape[1], y.stride(0),
        **_modules(widths), RANK=rank, FIELDS=FIELDS, RANK_FIELD=RANK_FIELD,
        SCALING_FIELD=SCALING_FIELD, EXPERTS=experts or 1, TILE=TILE_FIELDS,
        BY_TOKEN=tokens is not None, BACK=back, ALIGNED=_eight(aligned), ROWS=ROWS,
        COLUMNS=_COLUMNS, num_warps=4,
    )  # fmt: skip


def add_sums(
    wide: Tensor, thin: Tensor, table: Tensor, bounds: Tensor, layer: int,
    widths: tuple[int, ...], rank: int, aligned: bool, back: bool, experts: int = 0,
    tokens: Tensor | None = None,
) -> None:  # fmt: skip
    """Into the gradients of B: scaling · wide.T @ thin, or, going `back`, of A: thin.T @ wide.

    `bounds` int32 [groups, TILE_FIELDS] are each group's rows, as tiles are.
    """
    columns = max(widths) if not back else wide.shape[1]
    _add_sums[len(bounds), triton.cdiv(columns, _COLUMNS), len(widths)](
        wide, thin, table, bounds, bounds if tokens is None else tokens, layer, wide.shape[1],
        wide.stride(0), **_modules(widths), RANK=rank, FIELDS=FIELDS, RANK_FIELD=RANK_FIELD,
        SCALING_FIELD=SCALING_FIELD, EXPERTS=experts or 1, TILE=TILE_FIELDS,
        BY_TOKEN=tokens is not None, BACK=back, ALIGNED=_eight(aligned), COLUMNS=_COLUMNS,
        STEP=ROWS, num_warps=4 if rank < 128 else 8, num_stages=2,
    )  # fmt: skip


def counters(tiles: int, device: torch.device) -> Tensor:
    """What `shrink` counts finished slices in; all zero between two calls."""
    return torch.zeros(tiles * MODULES, dtype=torch.int32, device=device)


def _eight(aligned: bool) -> int:
    return 8 if aligned else 1


def _modules(widths: tuple[int, ...]) -> dict[str, int]:
    one, two, three, four = (*widths, 0, 0, 0)[:MODULES]
    return {"MODULES": len(widths), "ONE": one, "TWO": two, "THREE": three, "FOUR": four}


@triton.jit
def _pick(
    module, one: tl.constexpr, two: tl.constexpr, three: tl.constexpr, four: tl.constexpr,
    ALIGNED: tl.constexpr,
):  # fmt: skip
    """The module's own of four numbers."""
    found = tl.where(module == 2, three, four)
    found = tl.where(module == 0, one, tl.where(module == 1, two, found))
    return tl.multiple_of(found, ALIGNED)


@triton.jit
def _address(place, kind: tl.constexpr, ALIGNED: tl.constexpr):
    """The pointer that an address in the table stands for."""
    return tl.multiple_of(tl.load(place).to(tl.pointer_type(kind)), 2 * ALIGNED)


@triton.jit
def _tile(
    tile, table, layer, FIELDS: tl.constexpr, RANK_FIELD: tl.constexpr, EXPERTS: tl.constexpr,
    ALIGNED: tl.constexpr,
):  # fmt: skip
    """First row and end of a tile, its run's line of the table, which of the run's stacked factors
    are meant, and the run's rank."""
    info = table + tl.load(tile) * FIELDS
    stack = layer.to(tl.int64) * EXPERTS + tl.load(tile + 3)
    rank = tl.multiple_of(tl.load(info + RANK_FIELD).to(tl.int32), ALIGNED)
    return tl.load(tile + 1), tl.load(tile + 2), info, stack, rank


@triton.jit(do_not_specialize=["layer", "row_count"])
def _shrink(
    x,
    table,
    tiles,
    thin,
    parts,
    counts,
    layer,
    columns,
    x_stride,
    row_count,
    MODULES: tl.constexpr,
    ONE: tl.constexpr,
    TWO: tl.constexpr,
    THREE: tl.constexpr,
    FOUR: tl.constexpr,
    RANK: tl.constexpr,
    FIELDS: tl.constexpr,
    RANK_FIELD: tl.constexpr,
    SLICES: tl.constexpr,
    EXPERTS: tl.constexpr,
    TILE: tl.constexpr,
    LIMIT: tl.constexpr,
    BACK: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    tile, module, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first, stop, info, stack, rank = _tile(
        tiles + tile * TILE, table, layer, FIELDS, RANK_FIELD, EXPERTS, ALIGNED
    )
    if (first >= stop) | (rank == 0):
        return
    own, inner, ranks = tl.arange(0, ROWS), tl.arange(0, BLOCK), tl.arange(0, RANK)
    rows = (first + own).to(tl.int64)
    real = first + own < stop
    kind: tl.constexpr = x.dtype.element_ty
    if BACK:
        width = _pick(module, ONE, TWO, THREE, FOUR, ALIGNED)
        factor = _address(info + 2 + 2 * module, kind, ALIGNED)
        factor += stack * width * rank
        inner_stride, rank_stride = rank, 1
        x += _pick(module, 0, ONE, ONE + TWO, ONE + TWO + THREE, ALIGNED)
    else:
        width = columns
        factor = _address(info, kind, ALIGNED)
        factor += (stack * MODULES + module) * rank * width
        inner_stride, rank_stride = 1, columns
    total = tl.zeros([ROWS, RANK], tl.float32)
    share = tl.cdiv(tl.cdiv(width, SLICES), BLOCK) * BLOCK
    start = part * share
    for at in range(start, tl.minimum(start + share, width), BLOCK):
        place = at + inner
        there = place < width
        taken = tl.load(
            x + rows[:, None] * x_stride + place[None, :],
            mask=real[:, None] & there[None, :],
            other=0.0,
        )
        some = tl.load(
            factor + place[:, None] * inner_stride + ranks[None, :] * rank_stride,
            mask=there[:, None] & (ranks < rank)[None, :],
            other=0.0,
        )
        total = tl.dot(taken, some, total, input_precision="ieee")
    inside = real[:, None] & (ranks < rank)[None, :]
    target = rows[:, None] * (MODULES * RANK) + module * RANK + ranks[None, :]
    if SLICES == 1:
        tl.store(thin + target, total, mask=inside)
    else:
        size = row_count.to(tl.int64) * (MODULES * RANK)
        tl.store(parts + part * size + target, total, mask=inside)
        tl.debug_barrier()
        counter = counts + tile * LIMIT + module
        if tl.atomic_add(counter, 1, sem="acq_rel") == SLICES - 1:
            total = tl.zeros([ROWS, RANK], tl.float32)
            for other in tl.static_range(SLICES):
                total += tl.load(
                    parts + other * size + target, mask=inside, other=0.0, cache_modifier=".cg"
                )
            tl.store(thin + target, total, mask=inside)
            tl.store(counter, 0)


@triton.jit(do_not_specialize=["layer"])
def _expand(
    y,
    thin,
    table,
    tiles,
    tokens,
    layer,
    columns,
    y_stride,
    MODULES: tl.constexpr,
    ONE: tl.constexpr,
    TWO: tl.constexpr,
    THREE: tl.constexpr,
    FOUR: tl.constexpr,
    RANK: tl.constexpr,
    FIELDS: tl.constexpr,
    RANK_FIELD: tl.constexpr,
    SCALING_FIELD: tl.constexpr,
    EXPERTS: tl.constexpr,
    TILE: tl.constexpr,
    BY_TOKEN: tl.constexpr,
    BACK: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    strip, tile = tl.program_id(0), tl.program_id(1)
    first, stop, info, stack, rank = _tile(
        tiles + tile * TILE, table, layer, FIELDS, RANK_FIELD, EXPERTS, ALIGNED
    )
    if (first >= stop) | (rank == 0):
        return
    scaling = tl.load(info + SCALING_FIELD).to(tl.int32).to(tl.float32, bitcast=True)
    own, ranks = tl.arange(0, ROWS), tl.arange(0, RANK)
    rows = (first + own).to(tl.int64)
    real = first + own < stop
    used = real[:, None] & (ranks < rank)[None, :]
    taken_from = rows
    if BY_TOKEN:
        taken_from = tl.load(tokens + rows, mask=real, other=0).to(tl.int64)
    source = thin + taken_from[:, None] * (MODULES * RANK) + ranks[None, :]
    kind: tl.constexpr = thin.dtype.element_ty
    added = tl.zeros([ROWS, COLUMNS], tl.float32)
    if BACK:
        column, left = strip * COLUMNS + tl.arange(0, COLUMNS), 0
        there = column < columns
        base = _address(info, kind, ALIGNED) + stack * MODULES * rank * columns
        for module in tl.static_range(MODULES):
            some = tl.load(
                base + (module * rank + ranks)[:, None] * columns + column[None, :],
                mask=(ranks < rank)[:, None] & there[None, :],
                other=0.0,
            )
            taken = tl.load(source + module * RANK, mask=used, other=0.0)
            added = tl.dot(taken, some, added, input_precision="ieee")
    else:
        one = tl.cdiv(ONE, COLUMNS)
        two = one + tl.cdiv(TWO, COLUMNS)
        three = two + tl.cdiv(THREE, COLUMNS)
        module = (strip >= one).to(tl.int32) + (strip >= two).to(tl.int32)
        module += (strip >= three).to(tl.int32)
        before = tl.where(module == 2, two, three)
        before = tl.where(module == 0, 0, tl.where(module == 1, one, before))
        left = _pick(module, 0, ONE, ONE + TWO, ONE + TWO + THREE, ALIGNED)
        width = _pick(module, ONE, TWO, THREE, FOUR, ALIGNED)
        column = (strip - before) * COLUMNS + tl.arange(0, COLUMNS)
        there = column < width
        base = _address(info + 2 + 2 * module, kind, ALIGNED)
        base += stack * width * rank
        some = tl.load(
            base + column[None, :] * rank + ranks[:, None],
            mask=(ranks < rank)[:, None] & there[None, :],
            other=0.0,
        )
        taken = tl.load(source + module * RANK, mask=used, other=0.0)
        added = tl.dot(taken, some, added, input_precision="ieee")
    target = y + rows[:, None] * y_stride + (left + column)[None, :]
    inside = real[:, None] & there[None, :]
    before_sum = tl.load(target, mask=inside, other=0.0).to(tl.float32)
    tl.store(target, before_sum + scaling * added, mask=inside)


@triton.jit(do_not_specialize=["layer"])
def _add_sums(
    wide,
    thin,
    table,
    bounds,
    tokens,
    layer,
    columns,
    wide_stride,
    MODULES: tl.constexpr,
    ONE: tl.constexpr,
    TWO: tl.constexpr,
    THREE: tl.constexpr,
    FOUR: tl.constexpr,
    RANK: tl.constexpr,
    FIELDS: tl.constexpr,
    RANK_FIELD: tl.constexpr,
    SCALING_FIELD: tl.constexpr,
    EXPERTS: tl.constexpr,
    TILE: tl.constexpr,
    BY_TOKEN: tl.constexpr,
    BACK: tl.constexpr,
    ALIGNED: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
):
    bound, strip, module = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start, stop, info, stack, rank = _tile(
        bounds + bound * TILE, table, layer, FIELDS, RANK_FIELD, EXPERTS, ALIGNED
    )
    width = columns
    if not BACK:
        width = _pick(module, ONE, TWO, THREE, FOUR, ALIGNED)
        wide += _pick(module, 0, ONE, ONE + TWO, ONE + TWO + THREE, ALIGNED)
    if (start >= stop) | (rank == 0) | (strip * COLUMNS >= width):
        return
    scaling = tl.load(info + SCALING_FIELD).to(tl.int32).to(tl.float32, bitcast=True)
    column = strip * COLUMNS + tl.arange(0, COLUMNS)
    ranks = tl.arange(0, RANK)
    there, used = column < width, ranks < rank
    total = tl.zeros([COLUMNS, RANK], tl.float32)
    for at in range(start, stop, STEP):
        row = at + tl.arange(0, STEP)
        rows = row.to(tl.int64)[:, None]
        real = (row < stop)[:, None]
        left = tl.load(
            wide + rows * wide_stride + column[None, :], mask=real & there[None, :], other=0.0
        )
        taken_from = rows
        if BY_TOKEN:
            taken_from = tl.load(tokens + rows, mask=real, other=0).to(tl.int64)
        right = tl.load(
            thin + taken_from * (MODULES * RANK) + module * RANK + ranks[None, :],
            mask=real & used[None, :],
            other=0.0,
        )
        total = tl.dot(tl.trans(left), right, total, input_precision="ieee")
    if BACK:
        target = _address(info + 1, tl.float32, ALIGNED)
        target += (stack * MODULES + module) * rank * width
        place = column[:, None] + ranks[None, :].to(tl.int64) * width
    else:
        target = _address(info + 3 + 2 * module, tl.float32, ALIGNED)
        target += stack * width * rank
        place = column[:, None].to(tl.int64) * rank + ranks[None, :]
    inside = there[:, None] & used[None, :]
    before = tl.load(target + place, mask=inside, other=0.0)
    tl.store(target + place, before + scaling * total, mask=inside)
