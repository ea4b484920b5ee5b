"""A history read: any range at any resolution, minimum and maximum per part of it.

The older points lie in blocks (`folding`), the newest in rows of their own. Runs on any thread,
given a connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tinkex.server.recording.blocks import EXACT, Column, Numbers, array, decode
from tinkex.server.recording.steps import values_of
from tinkex.server.storage.database import curves, points
from tinkex.server.storage.database.curves import Block
from tinkex.server.storage.database.points import Point
from tinkex.server.storage.database.transactions import Transaction

_LAST = 2**62
_DIGITS, _EXACT_DIGITS = 7, 13
"""Of single precision, in which metrics are kept, and of time and steps."""

Axis = Literal["step", "time"]


class Wanted(NamedTuple):
    """A range of `x` at a resolution. No `metrics` means all of them."""

    metrics: tuple[str, ...] = ()
    x: Axis = "step"
    low: float | None = None
    high: float | None = None
    buckets: int = 600


def names(db: Transaction, owner: str) -> list[str]:
    """What a history has measured, the usual first."""
    found = set(curves.metrics(db, owner)) - EXACT
    for point in points.of_owner(db, owner):
        found |= values_of(point).keys()
    return sorted(found, key=lambda name: (_rank(name), name))


def read(db: Transaction, owner: str, wanted: Wanted) -> dict[str, Any]:
    """`{"x", "from", "to", "last", "points", "series"}`, as the documentation has it."""
    tail = points.of_owner(db, owner)
    grid = _Grid.read(db, owner, wanted.x, tail)
    rows = grid.within(wanted.low, wanted.high)
    x = grid.x.mean[rows]
    low, high = _ends(x, wanted)
    series = {}
    for metric in wanted.metrics or names(db, owner):
        column = grid.column(db, owner, metric, tail).pick(rows)
        if np.any(column.count > 0):
            digits = _EXACT_DIGITS if metric in EXACT else _DIGITS
            series[metric] = _bucketed(x, column, low, high, wanted.buckets, digits)
    count = int(grid.x.pick(rows).count.sum())
    last = tail[-1].n if tail else 0
    return {"x": wanted.x, "from": low, "to": high, "last": last, "points": count, "series": series}


class _Grid(NamedTuple):
    """Where the rows of a history lie on the axis: of each block, then of the tail."""

    blocks: tuple[tuple[Block, int], ...]
    x: Column

    @staticmethod
    def read(db: Transaction, owner: str, axis: Axis, tail: Sequence[Point]) -> _Grid:
        metric = "at" if axis == "time" else "step"
        found = [
            (block, decode(data, block.level, exact=True))
            for block, data in curves.read(db, owner, metric, 0, _LAST)
        ]
        own = Column.of(array(point.at if axis == "time" else point.step for point in tail))
        blocks = tuple((block, len(column)) for block, column in found)
        return _Grid(blocks, Column.join([*(column for _, column in found), own]))

    def within(self, low: float | None, high: float | None) -> NDArray[np.intp]:
        """The rows in a range, along the axis."""
        x = self.x.mean
        inside = np.ones(len(x), bool)
        inside &= True if low is None else x >= low
        inside &= True if high is None else x <= high
        found = np.flatnonzero(inside)
        order: NDArray[np.intp] = found[np.argsort(x[found], kind="stable")]
        return order

    def column(self, db: Transaction, owner: str, metric: str, tail: Sequence[Point]) -> Column:
        known = {
            block.first: decode(data, block.level, metric in EXACT)
            for block, data in curves.read(db, owner, metric, 0, _LAST)
        }
        parts = [known.get(block.first) or Column.missing(rows) for block, rows in self.blocks]
        own = Column.of(array(_value(point, metric) for point in tail))
        return Column.join([*parts, own])


def _ends(x: Numbers, wanted: Wanted) -> tuple[float | None, float | None]:
    found = (float(x[0]), float(x[-1])) if len(x) else (None, None)
    return (
        found[0] if wanted.low is None else wanted.low,
        found[1] if wanted.high is None else wanted.high,
    )


def _bucketed(
    x: Numbers, column: Column, low: float | None, high: float | None, buckets: int, digits: int
) -> dict[str, Any]:
    present = column.count > 0
    x, column = x[present], column.pick(present)
    if len(column) > buckets and low is not None and high is not None:
        width = (high - low) / buckets or 1.0
        places = np.minimum(((x - low) / width).astype(np.int64), buckets - 1)
        starts = np.flatnonzero(np.diff(places, prepend=-1))
        x = np.add.reduceat(x, starts) / np.diff(np.append(starts, len(x)))
        column = column.gathered(starts)
    return {
        "x": [round(value, 3) for value in x.tolist()],
        "min": _short(column.low, digits),
        "max": _short(column.high, digits),
        "mean": _short(column.mean, digits),
        "count": column.count.astype(int).tolist(),
    }


def spark(db: Transaction, owner: str, metric: str, width: int) -> dict[str, Any]:
    """A curve's whole life in at most `width` values."""
    series = read(db, owner, Wanted((metric,), buckets=width))["series"].get(metric)
    return {
        "metric": metric,
        "x": series["x"] if series else [],
        "y": series["mean"] if series else [],
    }


def _value(point: Point, metric: str) -> float | None:
    if metric in EXACT:
        return point.at if metric == "at" else float(point.step)
    return values_of(point).get(metric)


def _short(values: Numbers, digits: int) -> list[float]:
    """As many digits as there are."""
    return [float(f"{value:.{digits}g}") for value in values.tolist()]


_USUAL = ("loss", "learning_rate", "grad_norm", "update_norm", "tokens_per_s", "step_s", "tokens")


def _rank(name: str) -> int:
    return _USUAL.index(name) if name in _USUAL else len(_USUAL)
