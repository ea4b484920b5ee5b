"""Triton kernels for frozen matrices of float8 (e4m3) values with a power of two for every row.

`few` multiplies few rows: all its time goes into reading the matrix, a byte for each value. To
widen them would take longer than to read them, so rows are float8 too: one of them for each, or
two, the second holding what the first has lost, together the digits of bfloat16. A matrix with few
outputs is cut along its inputs as well; whichever program ends last sums the pieces, always in one
order. `narrowed` makes float8 rows of wide ones, `widened` the wide matrix of a float8 one.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST = 448.0
"""The largest value that e4m3 has."""

MAX_SLICES = 16
_PROGRAMS = 132
"""One for every multiprocessor of a large card."""

_FINER = 16.0
"""How much smaller the scale of a second row is: half a step of the first one's largest values is
as much of its scale."""

_TILE = 1024


class Tiling(NamedTuple):
    """How `few` is cut: outputs and inputs of a program's tile, and what it is compiled with."""

    columns: int
    inputs: int
    warps: int
    stages: int


def few(
    x: Tensor, x_scales: Tensor, values: Tensor, scales: Tensor, bias: Tensor | None,
    onto: Tensor | None, counts: Tensor, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """onto + x @ (scales · values).T + bias, for rows as `narrowed` makes them.

    `counts` is `counters` of the matrix, all zero between two calls.
    """
    (terms, rows, inputs), outputs = x.shape, len(values)
    tile = _rows_of(rows)
    tiling = _tiling(tile, terms)
    blocks, tiles = triton.cdiv(rows, tile), triton.cdiv(outputs, tiling.columns)
    slices = _slices(blocks * tiles, triton.cdiv(inputs, tiling.inputs))
    out = torch.empty(rows, outputs, dtype=dtype, device=x.device)
    parts = out
    if slices > 1:
        parts = torch.empty(slices, rows, outputs, dtype=torch.float32, device=x.device)
    _few[tiles, slices, blocks](
        x, x_scales, values, scales, out if bias is None else bias, out if onto is None else onto,
        out, parts, counts, rows, outputs, inputs, TERMS=terms, BIAS=bias is not None,
        ONTO=onto is not None, ROWS=tile,
        COLUMNS=tiling.columns, INPUTS=tiling.inputs, SLICES=slices,
        EVEN=inputs % tiling.inputs == 0, num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return out


def counters(outputs: int, device: torch.device) -> Tensor:
    """What `few` counts finished slices in."""
    return torch.zeros(triton.cdiv(outputs, 32) * 8, dtype=torch.int32, device=device)


def narrowed(x: Tensor, terms: int) -> tuple[Tensor, Tensor]:
    """Rows [rows, width] as float8 [terms, rows, width], and what each is to be multiplied by,
    [terms, rows, 1]: the terms of a row add up to it."""
    rows, width = x.shape
    values = torch.empty(terms, rows, width, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(terms, rows, 1, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(width)
    _narrow[(rows,)](
        x, values, scales, width, x.stride(0), TERMS=terms, LARGEST=LARGEST, FINER=_FINER,
        BLOCK=block, num_warps=4 if block <= 4096 else 8,
    )  # fmt: skip
    return values, scales


def widened(values: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """scales · values; nothing is lost in it."""
    rows, width = values.shape
    out = torch.empty(rows, width, dtype=dtype, device=values.device)
    _widen[rows, triton.cdiv(width, _TILE * 4)](values, scales, out, width, BLOCK=_TILE * 4)
    return out


def _rows_of(rows: int) -> int:
    return int(min(128, max(16, triton.next_power_of_2(rows))))


def _tiling(rows: int, terms: int) -> Tiling:
    """Measured: `benchmarks/engine_float8.py`."""
    if rows > 64:
        return Tiling(64, 128, 4, 4)
    return Tiling(64, 256, 4, 4 if rows * terms <= 32 else 3)


def _slices(programs: int, steps: int) -> int:
    """As many as fill the device, of at least four steps each; a power of two."""
    slices = 1
    while slices * programs < _PROGRAMS and slices < MAX_SLICES and steps >= 8 * slices:
        slices *= 2
    return slices


@triton.jit(do_not_specialize=["rows"])
def _few(
    x,
    x_scales,
    values,
    scales,
    bias,
    onto,
    out,
    parts,
    counts,
    rows,
    outputs,
    inputs,
    TERMS: tl.constexpr,
    BIAS: tl.constexpr,
    ONTO: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INPUTS: tl.constexpr,
    SLICES: tl.constexpr,
    EVEN: tl.constexpr,
):
    tile, part, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = block * ROWS + tl.arange(0, ROWS)
    column = tile * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, INPUTS)
    real, inside = row < rows, column < outputs
    share = tl.cdiv(tl.cdiv(inputs, SLICES), INPUTS) * INPUTS
    start = part * share
    # The matrix comes first: its many rows suit the matrix units, the few others do not.
    total = tl.zeros([COLUMNS, ROWS], tl.float32)
    lanes = values + column.to(tl.int64)[:, None] * inputs + inner[None, :]
    taken = x + row.to(tl.int64)[None, :] * inputs + inner[:, None]
    second = inputs.to(tl.int64) * rows
    rest = tl.zeros([COLUMNS, ROWS], tl.float32)
    for at in range(start, tl.minimum(start + share, inputs), INPUTS):
        if EVEN:
            weight = tl.load(lanes + at, mask=inside[:, None], other=0.0)
            given = tl.load(taken + at, mask=real[None, :], other=0.0)
        else:
            there = at + inner < inputs
            weight = tl.load(lanes + at, mask=inside[:, None] & there[None, :], other=0.0)
            given = tl.load(taken + at, mask=real[None, :] & there[:, None], other=0.0)
        total = tl.dot(weight, given, total)
        if TERMS == 2:
            if EVEN:
                given = tl.load(taken + second + at, mask=real[None, :], other=0.0)
            else:
                given = tl.load(taken + second + at, mask=real[None, :] & there[:, None], other=0.0)
            rest = tl.dot(weight, given, rest)
    # Scales are powers of two: it is the same to multiply before the pieces are summed.
    total = total * tl.load(x_scales + row, mask=real, other=0.0)[None, :]
    if TERMS == 2:
        total += rest * tl.load(x_scales + rows + row, mask=real, other=0.0)[None, :]
    place = row.to(tl.int64)[None, :] * outputs + column[:, None]
    whole = inside[:, None] & real[None, :]
    last = True
    if SLICES > 1:
        piece = outputs.to(tl.int64) * rows
        tl.store(parts + part * piece + place, total, mask=whole)
        tl.debug_barrier()
        counter = counts + block * tl.num_programs(0) + tile
        last = tl.atomic_add(counter, 1, sem="acq_rel") == SLICES - 1
        if last:
            total = tl.zeros([COLUMNS, ROWS], tl.float32)
            for other in tl.static_range(SLICES):
                total += tl.load(
                    parts + other * piece + place, mask=whole, other=0.0, cache_modifier=".cg"
                )
            tl.store(counter, 0)
    if last:
        total = total * tl.load(scales + column, mask=inside, other=0.0)[:, None]
        if BIAS:
            total += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)[:, None]
        if ONTO:
            total += tl.load(onto + place, mask=whole, other=0.0).to(tl.float32)
        tl.store(out + place, total, mask=whole)


@triton.jit
def _narrow(
    x,
    values,
    scales,
    width,
    x_stride,
    TERMS: tl.constexpr,
    LARGEST: tl.constexpr,
    FINER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, rows = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    column = tl.arange(0, BLOCK)
    inside = column < width
    wide = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    share = tl.maximum(tl.max(tl.abs(wide), 0) / LARGEST, 1e-30)
    # The next power of two: dividing by it changes no digit.
    bits = (share.to(tl.int32, bitcast=True) + 0x7FFFFF) & 0x7F800000
    scale = bits.to(tl.float32, bitcast=True)
    narrow = _rounded(wide / scale)
    tl.store(values + row * width + column, narrow.to(tl.float8e4nv), mask=inside)
    tl.store(scales + row, scale)
    if TERMS == 2:
        lost = _rounded((wide - narrow * scale) / (scale / FINER))
        place = (rows + row) * width + column
        tl.store(values + place, lost.to(tl.float8e4nv), mask=inside)
        tl.store(scales + rows + row, scale / FINER)


@triton.jit
def _rounded(x):
    """The nearest value that e4m3 has. The conversion then changes nothing, also under the
    interpreter, whose own rounding loses carries."""
    bits = x.to(tl.int32, bitcast=True)
    digits = (bits + 0x7FFFF + ((bits >> 20) & 1)) & ~0xFFFFF
    # Below 2 ** -6 steps no longer shrink: float32 itself has none finer than 2 ** -9 up there.
    steps = (x + 24576.0) - 24576.0
    return tl.where(tl.abs(x) < 0.015625, steps, digits.to(tl.float32, bitcast=True))


@triton.jit
def _widen(values, scales, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    narrow = tl.load(values + row * width + column, mask=inside, other=0.0)
    wide = narrow.to(tl.float32) * tl.load(scales + row)
    tl.store(out + row * width + column, wide, mask=inside)
