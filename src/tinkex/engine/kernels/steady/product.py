"""Triton kernel for the product of rows with a frozen matrix: the same bits for any number of rows.

Every element is one sum over the inputs, in order, never cut. How many rows and columns a program
takes follows from the number of rows, and changes no sum. The matrix comes first: its many outputs
suit the matrix units, which want 64, and rows may be few; so all tilings use instructions of one
kind.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class Tiling(NamedTuple):
    """Rows, outputs and inputs of a program's tile, and what it is compiled with."""

    rows: int
    columns: int
    inputs: int
    warps: int
    stages: int


TILINGS = (
    Tiling(16, 64, 64, 4, 8),
    Tiling(32, 64, 64, 4, 7),
    Tiling(64, 64, 64, 4, 6),
    Tiling(128, 64, 64, 4, 5),
)
"""For up to so many rows each: all their time goes into reading the matrix."""

MANY = Tiling(128, 128, 64, 8, 4)
"""For more than `FEW` rows. `benchmarks/engine_steady.py` tries others."""

FEW = 512

ANY = TILINGS[-1]
"""For any number of rows, on a card where tilings do not agree: see `agree`."""

_GROUP = 8
"""Tiles of rows that are gone through before the next outputs: together they fit into the cache."""


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, onto: Tensor | None = None,
    dtype: torch.dtype | None = None, tiling: Tiling | None = None,
) -> Tensor:  # fmt: skip
    """x @ weight.T + bias in `dtype`, that of x if not said, then added to `onto`.

    x is [rows, inputs], dense along a row; weight [outputs, inputs] in any layout.
    """
    (rows, inputs), outputs = x.shape, len(weight)
    out = torch.empty(rows, outputs, dtype=dtype or x.dtype, device=x.device)
    cut = tiling or tiling_of(rows)
    if not rows:
        return out
    _product[(triton.cdiv(rows, cut.rows) * triton.cdiv(outputs, cut.columns),)](
        x, weight, out if bias is None else bias, out if onto is None else onto, out, rows, outputs,
        inputs, x.stride(0), *weight.stride(), BIAS=bias is not None, ONTO=onto is not None,
        ROWS=cut.rows, COLUMNS=cut.columns, INPUTS=cut.inputs, GROUP=_GROUP,
        EVEN=inputs % cut.inputs == 0, num_warps=cut.warps, num_stages=cut.stages,
    )  # fmt: skip
    return out


class _Choice:
    agreed = True


def tiling_of(rows: int) -> Tiling:
    if not _Choice.agreed:
        return ANY
    if rows > FEW:
        return MANY
    return next((tiling for tiling in TILINGS if rows <= tiling.rows), TILINGS[-1])


def agree(weight: Tensor) -> bool:
    """Whether all tilings find the same bits with this matrix; where they do not, all products of
    this process are made by one from now on."""
    x = torch.randn(MANY.rows + 2, weight.shape[1], dtype=weight.dtype, device=weight.device)
    wanted = product(x, weight, tiling=TILINGS[0])
    same = all(
        torch.equal(product(x, weight, tiling=tiling), wanted) for tiling in (*TILINGS[1:], MANY)
    )
    _Choice.agreed = _Choice.agreed and same
    return same


@triton.jit(do_not_specialize=["rows"])
def _product(
    x,
    weight,
    bias,
    onto,
    out,
    rows,
    outputs,
    inputs,
    x_stride,
    column_stride,
    inner_stride,
    BIAS: tl.constexpr,
    ONTO: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INPUTS: tl.constexpr,
    GROUP: tl.constexpr,
    EVEN: tl.constexpr,
):
    program = tl.program_id(0)
    row_tiles, wide = tl.cdiv(rows, ROWS), GROUP * tl.cdiv(outputs, COLUMNS)
    above = program // wide * GROUP
    high = tl.minimum(row_tiles - above, GROUP)
    row = (above + program % wide % high) * ROWS + tl.arange(0, ROWS)
    column = program % wide // high * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, INPUTS)
    real, inside = row < rows, column < outputs
    lanes = weight + column.to(tl.int64)[:, None] * column_stride
    lanes += inner.to(tl.int64)[None, :] * inner_stride
    taken = x + row.to(tl.int64)[None, :] * x_stride + inner[:, None]
    total = tl.zeros([COLUMNS, ROWS], tl.float32)
    for at in range(0, inputs, INPUTS):
        if EVEN:
            own = tl.load(lanes, mask=inside[:, None], other=0.0)
            given = tl.load(taken, mask=real[None, :], other=0.0)
        else:
            there = at + inner < inputs
            own = tl.load(lanes, mask=inside[:, None] & there[None, :], other=0.0)
            given = tl.load(taken, mask=real[None, :] & there[:, None], other=0.0)
        total = tl.dot(own, given, total, input_precision="ieee")
        lanes += INPUTS * inner_stride
        taken += INPUTS
    if BIAS:
        total += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)[:, None]
    place = row.to(tl.int64)[None, :] * outputs + column[:, None]
    whole = inside[:, None] & real[None, :]
    if ONTO:
        # Rounded first, as where the sum is an operation of its own.
        total = total.to(out.dtype.element_ty).to(tl.float32)
        total += tl.load(onto + place, mask=whole, other=0.0).to(tl.float32)
    tl.store(out + place, total, mask=whole)
