"""The product of rows with a frozen matrix: the same bits for any number of rows. A Triton kernel.

Every element is one sum over the inputs, in order, never cut. How many rows and columns a program
takes follows from the sizes, and changes no sum. The matrix comes first: its many outputs suit the
matrix units, which want 64, and rows may be few; so all tilings use instructions of one kind. Where
a library was seen to find the same bits, it makes them: see `library`.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinkex.engine.kernels.steady import library


class Tiling(NamedTuple):
    """Rows, outputs and inputs of a program's tile, and what it is compiled with."""

    rows: int
    columns: int
    inputs: int
    warps: int
    stages: int


MANY = Tiling(256, 128, 64, 8, 3)
"""For more rows than the tables below know. All of them as measured on an H200:
`benchmarks/engine_steady.py` tries others."""

WIDE = {
    16: Tiling(16, 64, 64, 4, 8),
    32: Tiling(32, 64, 64, 4, 7),
    64: Tiling(64, 64, 64, 4, 6),
    128: Tiling(128, 64, 64, 4, 5),
    512: Tiling(128, 128, 64, 8, 4),
}
"""By the most rows each is for. With few, all time goes into reading the matrix."""

NARROW = {
    32: Tiling(16, 64, 128, 4, 5),
    64: Tiling(32, 64, 64, 4, 7),
    256: Tiling(64, 64, 64, 4, 6),
    512: Tiling(128, 128, 64, 8, 4),
}
"""The same for up to `FEW_OUTPUTS`: larger tiles would be too few for all of a card."""

FEW_OUTPUTS = 8192

ANY = WIDE[128]
"""For any number of rows, on a card where tilings do not agree: see `settle`."""

_GROUP = 8
"""Tiles of rows that are gone through before the next outputs: together they fit into the cache."""


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, onto: Tensor | None = None,
    dtype: torch.dtype | None = None, tiling: Tiling | None = None,
) -> Tensor:  # fmt: skip
    """x @ weight.T + bias in `dtype`, that of x if not said, then added to `onto`.

    x is [rows, inputs], dense along a row; weight [outputs, inputs] in any layout.
    """
    out = torch.empty(len(x), len(weight), dtype=dtype or x.dtype, device=x.device)
    done = library.fill(out, x, weight) if bias is None and tiling is None else 0
    if done and onto is not None:
        out[:done] += onto[:done]
    if done < len(x):
        rest = None if onto is None else onto[done:]
        _launch(out[done:], x[done:], weight, bias, rest, tiling)
    return out


def _launch(
    out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, onto: Tensor | None,
    tiling: Tiling | None,
) -> None:  # fmt: skip
    (rows, inputs), outputs = x.shape, len(weight)
    cut = tiling or tiling_of(rows, outputs)
    _product[(triton.cdiv(rows, cut.rows) * triton.cdiv(outputs, cut.columns),)](
        x, weight, out if bias is None else bias, out if onto is None else onto, out, rows, outputs,
        inputs, x.stride(0), *weight.stride(), BIAS=bias is not None, ONTO=onto is not None,
        ROWS=cut.rows, COLUMNS=cut.columns, INPUTS=cut.inputs, GROUP=_GROUP,
        EVEN=inputs % cut.inputs == 0, num_warps=cut.warps, num_stages=cut.stages,
    )  # fmt: skip


class _Choice:
    agreed = True


def tiling_of(rows: int, outputs: int) -> Tiling:
    if not _Choice.agreed:
        return ANY
    table = NARROW if outputs <= FEW_OUTPUTS else WIDE
    return next((tiling for most, tiling in table.items() if rows <= most), MANY)


def settle(weight: Tensor, dtype: torch.dtype) -> bool:
    """Compare all ways to make this product with results in `dtype`, bit by bit.

    Where tilings differ, which is False, all products of this process are made by one from now on;
    where the library differs, it is not used for so many rows by matrices of this size.
    """
    tilings = {*WIDE.values(), *NARROW.values(), MANY}
    x = torch.randn(MANY.rows + 2, weight.shape[1], device=weight.device).to(weight.dtype)
    wanted = product(x, weight, dtype=dtype, tiling=ANY)
    same = all(torch.equal(product(x, weight, dtype=dtype, tiling=t), wanted) for t in tilings)
    _Choice.agreed = _Choice.agreed and same
    if not _Choice.agreed:
        library.forget()
    elif weight.is_cuda:
        library.learn(weight, dtype, lambda x: product(x, weight, dtype=dtype, tiling=ANY))
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
