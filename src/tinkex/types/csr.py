"""Rows compressed: a mostly empty 2-D tensor as values, row pointers and column numbers.

Plain numpy. Knows nothing of what the numbers mean.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64Array = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Csr:
    """Row `i` holds `values[crow[i]:crow[i+1]]` at the columns `col[crow[i]:crow[i+1]]`."""

    values: NDArray[Any]
    crow: Int64Array
    col: Int64Array
    shape: tuple[int, int]


def csr_from_dense(array: NDArray[Any], pad_value: int) -> Csr | None:
    """The cells that differ from `pad_value`, or None when that would not be smaller."""
    rows, columns = array.shape
    listed = array != pad_value
    count = int(np.count_nonzero(listed))
    if (rows + 1) + 2 * count >= rows * columns:
        return None
    crow = np.zeros(rows + 1, dtype=np.int64)
    np.cumsum(np.count_nonzero(listed, axis=1), out=crow[1:])
    return Csr(array[listed], crow, np.nonzero(listed)[1].astype(np.int64), (rows, columns))


def dense_from_csr(csr: Csr, pad_value: int) -> NDArray[Any]:
    """Unlisted cells become `pad_value`."""
    dense = np.full(csr.shape, pad_value, dtype=csr.values.dtype)
    rows = np.repeat(np.arange(csr.shape[0]), np.diff(csr.crow))
    dense[rows, csr.col] = csr.values
    return dense


def check_csr(
    values: NDArray[Any], crow: Int64Array | None, col: Int64Array | None, shape: list[int] | None
) -> None:
    """ValueError unless the parts describe a 2-D tensor of `shape`."""
    if crow is None or col is None:
        raise ValueError("sparse_crow_indices and sparse_col_indices come together: set both")
    if shape is None or len(shape) != 2:
        raise ValueError(f"a sparse tensor needs a 2-D shape, got {shape}")
    rows, columns = shape
    if rows < 0 or columns < 0:
        raise ValueError(f"shape must have no negative sizes, got {shape}")
    if crow.ndim != 1 or len(crow) != rows + 1:
        raise ValueError(f"sparse_crow_indices needs {rows + 1} entries, got {crow.size}")
    if values.ndim != 1 or col.shape != values.shape:
        raise ValueError(f"sparse_col_indices has {col.size} entries for {values.size} values")
    if crow[0] != 0 or crow[-1] != len(col) or (np.diff(crow) < 0).any():
        raise ValueError(f"sparse_crow_indices must rise from 0 to {len(col)}")
    if len(col) and (col.min() < 0 or col.max() >= columns):
        raise ValueError(f"sparse_col_indices must lie in 0..{columns - 1}")
