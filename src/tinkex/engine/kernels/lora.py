"""Triton kernel that adds a low-rank product in place.

The product is thin: all the time goes into reading and writing what it is added to, which this does
once. Matrix libraries take up to twice as long. For several adapters see `lora_table`.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_ROWS = 64
_COLUMNS = 128
_WARPS = 4


def add_products(y: Tensor, left: Tensor, right: Tensor, scaling: float) -> None:
    """y += scaling · left @ right.

    y [rows, columns] and left [rows, inner] are contiguous along a row; right is [inner, columns]
    in any layout.
    """
    inner, columns = right.shape
    _add_products[triton.cdiv(columns, _COLUMNS), triton.cdiv(len(y), _ROWS)](
        y, left, right, scaling, len(y), columns, inner, y.stride(0), left.stride(0),
        *right.stride(), ROWS=_ROWS, COLUMNS=_COLUMNS,
        INNER=max(16, triton.next_power_of_2(inner)), num_warps=_WARPS,
    )  # fmt: skip


@triton.jit(do_not_specialize=["count"])
def _add_products(
    y,
    left,
    right,
    scaling,
    count,
    columns,
    inner,
    y_stride,
    left_stride,
    inner_stride,
    column_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    first, stop = tl.program_id(1) * ROWS, count
    # Corners in 64 bits, places from there in 32: a tile of wide addresses would fill registers.
    corner = first.to(tl.int64)
    y += corner * y_stride
    left += corner * left_stride
    row = tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, INNER)
    real = first + row < stop
    thin = tl.load(
        left + row[:, None] * left_stride + depth[None, :],
        mask=real[:, None] & (depth < inner)[None, :],
        other=0.0,
    )
    factor = tl.load(
        right + depth[:, None] * inner_stride + column[None, :] * column_stride,
        mask=(depth < inner)[:, None] & (column < columns)[None, :],
        other=0.0,
    )
    target = y + row[:, None] * y_stride + column[None, :]
    inside = real[:, None] & (column < columns)[None, :]
    before = tl.load(target, mask=inside, other=0.0).to(tl.float32)
    added = tl.dot(thin, factor, input_precision="ieee")
    tl.store(target, before + scaling * added, mask=inside)
