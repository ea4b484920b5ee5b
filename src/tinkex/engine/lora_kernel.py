"""Triton kernels that add low-rank products in place, each group's rows with its own factors.

The products are thin: all the time goes into reading and writing what they are added to, which
these do once, for any number of adapters in one launch. Matrix libraries take up to twice as long.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS = 64
_COLUMNS = 128
_WARPS = 4
_HEIGHT = 128
_STEP = 64
"""Rows that `add_sums` takes at a time."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows [start, stop) of each group, int32 [groups, 2], and cut into tiles, [tiles, 3], of
    group, start and stop."""

    bounds: Tensor
    tiles: Tensor


def groups(bounds: Sequence[tuple[int, int]], device: torch.device) -> Groups:
    tiles = [
        (group, first, stop)
        for group, (start, stop) in enumerate(bounds)
        for first in range(start, stop, _ROWS)
    ]
    made = (torch.tensor(numbers, dtype=torch.int32).to(device) for numbers in (bounds, tiles))
    return Groups(*made)


def add_products(
    y: Tensor, left: Tensor, right: Tensor, scaling: float, within: Groups | None = None
) -> None:
    """y += scaling · left @ right[group]; without groups all rows are of group 0.

    y [rows, columns] and left [rows, inner] are contiguous along a row; right is
    [groups, inner, columns] in any layout.
    """
    inner, columns = right.shape[1:]
    count = triton.cdiv(len(y), _ROWS) if within is None else len(within.tiles)
    _add_products[triton.cdiv(columns, _COLUMNS), count](
        y, left, right, y if within is None else within.tiles, scaling, len(y), columns, inner,
        y.stride(0), left.stride(0), *right.stride(), ONE=within is None, ROWS=_ROWS,
        COLUMNS=_COLUMNS, INNER=max(16, triton.next_power_of_2(inner)), num_warps=_WARPS,
    )  # fmt: skip


def add_sums(total: Tensor, left: Tensor, right: Tensor, scaling: float, within: Groups) -> None:
    """total[group] += scaling · left.T @ right over the group's rows.

    All are contiguous along their last dimension; total is [groups, left's width, right's width].
    """
    height, width = total.shape[1:]
    columns = min(_HEIGHT, max(16, triton.next_power_of_2(width)))
    grid = (triton.cdiv(height, _HEIGHT), triton.cdiv(width, columns), len(total))
    _add_sums[grid](
        total, left, right, within.bounds, scaling, height, width, left.stride(0), right.stride(0),
        total.stride(0), total.stride(1), HEIGHT=_HEIGHT, WIDTH=columns, STEP=_STEP,
        num_warps=8 if columns == _HEIGHT else 4, num_stages=3,
    )  # fmt: skip


@triton.jit
def _add_products(
    y,
    left,
    right,
    tiles,
    scaling,
    count,
    columns,
    inner,
    y_stride,
    left_stride,
    group_stride,
    inner_stride,
    column_stride,
    ONE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    group, first, stop = tl.program_id(1) * 0, tl.program_id(1) * ROWS, count
    if not ONE:
        tile = tiles + tl.program_id(1) * 3
        group, first, stop = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2)
    # Corners in 64 bits, places from there in 32: a tile of wide addresses would fill registers.
    corner = first.to(tl.int64)
    y += corner * y_stride
    left += corner * left_stride
    right += group.to(tl.int64) * group_stride
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


@triton.jit
def _add_sums(
    total,
    left,
    right,
    bounds,
    scaling,
    height,
    width,
    left_stride,
    right_stride,
    group_stride,
    total_stride,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    STEP: tl.constexpr,
):
    group = tl.program_id(2)
    start, stop = tl.load(bounds + group * 2), tl.load(bounds + group * 2 + 1)
    down = tl.program_id(0) * HEIGHT + tl.arange(0, HEIGHT)
    across = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    found = tl.zeros([HEIGHT, WIDTH], tl.float32)
    for at in range(start, stop, STEP):
        row = at + tl.arange(0, STEP)
        rows = row.to(tl.int64)[:, None]
        one = tl.load(
            left + rows * left_stride + down[None, :],
            mask=(row < stop)[:, None] & (down < height)[None, :],
            other=0.0,
        )
        other = tl.load(
            right + rows * right_stride + across[None, :],
            mask=(row < stop)[:, None] & (across < width)[None, :],
            other=0.0,
        )
        found = tl.dot(tl.trans(one), other, found, input_precision="ieee")
    target = total + group.to(tl.int64) * group_stride
    target += down.to(tl.int64)[:, None] * total_stride + across[None, :]
    inside = (down < height)[:, None] & (across < width)[None, :]
    before = tl.load(target, mask=inside, other=0.0)
    tl.store(target, before + scaling * found, mask=inside)
