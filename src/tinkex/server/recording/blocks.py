"""Blocks of a history as bytes: columns of numbers, and two neighbours made into one half as fine.

A column has a value per row, NaN where there is none. Finer rows stand for one point each; coarser
ones know the minimum, maximum, mean and number of theirs. Pure: arrays in, bytes out, and back.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
EXACT = frozenset({"at", "step"})
"""Columns in double precision: time and steps."""


@dataclass(frozen=True, slots=True)
class Column:
    """One metric over the rows of one or several blocks."""

    low: Numbers
    high: Numbers
    mean: Numbers
    count: Numbers

    @staticmethod
    def of(values: Numbers) -> Column:
        """One value per point."""
        return Column(values, values, values, np.isfinite(values).astype(np.float64))

    @staticmethod
    def missing(rows: int) -> Column:
        return Column.of(np.full(rows, np.nan))

    @staticmethod
    def join(columns: list[Column]) -> Column:
        if not columns:
            return Column.missing(0)
        parts = zip(
            *((each.low, each.high, each.mean, each.count) for each in columns), strict=True
        )
        return Column(*(np.concatenate(part) for part in parts))

    def pick(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> Column:
        return Column(self.low[rows], self.high[rows], self.mean[rows], self.count[rows])

    def __len__(self) -> int:
        return len(self.mean)

    def gathered(self, starts: NDArray[np.intp]) -> Column:
        """Rows taken together in groups, each beginning at one of `starts`."""
        count = np.add.reduceat(self.count, starts)
        total = np.add.reduceat(np.where(self.count > 0, self.mean * self.count, 0.0), starts)
        with np.errstate(invalid="ignore", divide="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return Column(
                np.fmin.reduceat(self.low, starts),
                np.fmax.reduceat(self.high, starts),
                total / count,
                count,
            )


def encode(column: Column, level: int, exact: bool) -> bytes:
    kind = "<f8" if exact else "<f4"
    parts = [column.mean.astype(kind)]
    if level:
        parts = [column.low.astype(kind), column.high.astype(kind), *parts]
        parts.append(column.count.astype("<u4").view("<u4"))
    return zlib.compress(b"".join(part.tobytes() for part in parts), 1)


def decode(data: bytes, level: int, exact: bool) -> Column:
    raw, width = zlib.decompress(data), 8 if exact else 4
    kind = np.dtype("<f8" if exact else "<f4")
    if not level:
        return Column.of(np.frombuffer(raw, kind).astype(np.float64))
    rows = len(raw) // (3 * width + 4)
    low, high, mean = (
        np.frombuffer(raw[: 3 * width * rows], kind).reshape(3, rows).astype(np.float64)
    )
    count = np.frombuffer(raw[3 * width * rows :], "<u4").astype(np.float64)
    return Column(low, high, mean, count)


def halved(column: Column) -> Column:
    """Pairs of neighbours as one row each."""
    return column.gathered(np.arange(0, len(column), 2)) if len(column) else column


def array(values: Iterable[float | None]) -> Numbers:
    """Numbers as a column has them: NaN where there is none."""
    return np.array([np.nan if value is None else value for value in values], np.float64)
