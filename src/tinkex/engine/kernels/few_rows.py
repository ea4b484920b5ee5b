"""A Triton kernel for the product of few rows with a frozen matrix, as in a decode step.

All its time goes into reading the matrix, so what comes before and after the product is done where
its numbers are: what is added, and the gate of an MLP. In a chain of kernels (`dependent_launch`)
the matrix is read while kernels before still run.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

from typing import NamedTuple, TypeGuard

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinkex.engine.kernels import dependent_launch

MOST_ROWS = 64
"""Beyond it a library's product is as fast."""


class Tiling(NamedTuple):
    """How a product is cut: outputs and inputs of a tile, and what it is compiled with."""

    columns: int
    inputs: int
    warps: int
    stages: int


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None, plus: Tensor | None, *, gated: bool = False,
    dtype: torch.dtype | None = None, tiling: Tiling | None = None,
) -> Tensor:  # fmt: skip
    """x @ weight.T + bias + plus [rows, outputs]; `gated`, silu(first half) · second half of it."""
    (rows, inputs), outputs = x.shape, len(weight)
    width = outputs // 2 if gated else outputs
    tiling = tiling or tiling_of(rows, width, inputs, gated)
    out = torch.empty(rows, width, dtype=dtype or x.dtype, device=x.device)
    tile = _rows_of(rows)
    _product[triton.cdiv(width, tiling.columns), triton.cdiv(rows, tile)](
        x, weight, weight if bias is None else bias, out if plus is None else plus, out, rows,
        width, inputs, x.stride(0), 0 if plus is None else plus.stride(0), BIASED=bias is not None,
        PLUS=plus is not None, GATED=gated, ROWS=tile, COLUMNS=tiling.columns,
        INPUTS=tiling.inputs, EVEN=inputs % tiling.inputs == 0 and width % tiling.columns == 0,
        num_warps=tiling.warps, num_stages=tiling.stages,
        **dependent_launch.options(),
    )  # fmt: skip
    return out


def takes(weight: object, x: Tensor) -> TypeGuard[Tensor]:
    """Whether this is a product for here."""
    return (
        isinstance(weight, Tensor)
        and weight.dtype == torch.bfloat16 == x.dtype
        and len(x) <= MOST_ROWS
        and x.stride(1) == 1
        and weight.is_contiguous()
        and weight.shape[0] % 16 == 0 == weight.shape[1] % 16
    )


def tiling_of(rows: int, width: int, inputs: int, gated: bool) -> Tiling:
    """Measured: `benchmarks/engine_few_rows.py`."""
    if gated or width > 16384:
        return Tiling(64, 128, 4, 4)
    if rows <= 16:
        return Tiling(16, 512, 2, 4) if inputs > 2048 else Tiling(64, 128, 4, 6)
    return Tiling(32, 512, 4, 3) if width <= 4096 else Tiling(64, 128, 4, 6)


def _rows_of(rows: int) -> int:
    return int(min(64, max(16, triton.next_power_of_2(rows))))


@triton.jit(do_not_specialize=["rows"])
def _product(
    x,
    weight,
    bias,
    plus,
    out,
    rows,
    width,
    inputs,
    x_stride,
    plus_stride,
    BIASED: tl.constexpr,
    PLUS: tl.constexpr,
    GATED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INPUTS: tl.constexpr,
    EVEN: tl.constexpr,
    CHAINED: tl.constexpr,
):
    tile, block = tl.program_id(0), tl.program_id(1)
    row = block * ROWS + tl.arange(0, ROWS)
    column = tile * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, INPUTS)
    real, inside = row < rows, column < width
    # The matrix comes first: its many rows suit the matrix units, the few others do not.
    own = tl.where(inside, column, 0).to(tl.int64)[:, None] * inputs
    lanes = weight + own + inner[None, :]
    second = width.to(tl.int64) * inputs
    dependent_launch.begin(CHAINED)
    taken = x + row.to(tl.int64)[None, :] * x_stride + inner[:, None]
    total = tl.zeros([COLUMNS, ROWS], tl.float32)
    other = tl.zeros([COLUMNS, ROWS], tl.float32)
    for start in range(0, inputs, INPUTS):
        if EVEN:
            given = tl.load(taken + start, mask=real[None, :], other=0.0, cache_modifier=".cg")
            one = tl.load(lanes + start, eviction_policy="evict_first")
        else:
            there = start + inner < inputs
            known = real[None, :] & there[:, None]
            given = tl.load(taken + start, mask=known, other=0.0, cache_modifier=".cg")
            one = tl.load(lanes + start, mask=there[None, :], other=0.0)
        total = tl.dot(one, given, total, input_precision="ieee")
        if GATED:
            if EVEN:
                two = tl.load(lanes + second + start, eviction_policy="evict_first")
            else:
                two = tl.load(lanes + second + start, mask=there[None, :], other=0.0)
            other = tl.dot(two, given, other, input_precision="ieee")
    whole = inside[:, None] & real[None, :]
    if BIASED:
        total += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)[:, None]
        if GATED:
            more = tl.load(bias + width + column, mask=inside, other=0.0)
            other += more.to(tl.float32)[:, None]
    if PLUS:
        place = plus + row.to(tl.int64)[None, :] * plus_stride + column[:, None]
        total += tl.load(place, mask=whole, other=0.0).to(tl.float32)
        if GATED:
            other += tl.load(place + width, mask=whole, other=0.0).to(tl.float32)
    if GATED:
        total = total * tl.sigmoid(total) * other
    tl.store(out + row.to(tl.int64)[None, :] * width + column[:, None], total, mask=whole)
