"""One optimizer step as a point of a history: what its calls measured, as one set of numbers.

Several forward-backward calls, or chunks of one, may make up a step. Until the step ends its point
holds what they sent under the names the engine gives, whose suffix says how to reduce them; then it
gets the names that people read. Pure but for the rows it reads and writes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tinkex.server.recording.blocks import EXACT
from tinkex.server.storage.database import points, runs
from tinkex.server.storage.database.points import Point
from tinkex.server.storage.database.transactions import Transaction
from tinkex.wire.reducers import REDUCERS

_DATUMS = "datums:sum"
_TRAINED = "trained:sum"
_MOST_METRICS = 64
_LONGEST_NAME = 64


class Measured(NamedTuple):
    """What one operation adds to its run's history. `ends_step` is true for an optimizer step."""

    run: str  # its id
    seq_id: int  # of the operation
    at: float  # when it ended
    metrics: Mapping[str, float]  # as its client got them
    ends_step: bool = False  # whether a point ends with it
    tokens: int = 0  # trained on
    datums: int = 0  # trained on
    wait_s: float = 0.0  # until its turn came
    compute_s: float = 0.0  # with the engine

    def write(self, db: Transaction) -> Point | None:
        """Put it into the run's newest point, or begin one; None if it is there already."""
        last = points.newest(db, self.run, 2)
        if last and last[0].seq_id >= self.seq_id:
            return None
        step = runs.step_of(db, self.run)
        point = self._added(last, step if self.ends_step else step + 1)
        points.put(db, self.run, point)
        return point

    def _added(self, last: list[Point], step: int) -> Point:
        if last and not last[0].done:
            values = merged(last[0].values, self._raw())
            point = last[0]._replace(seq_id=self.seq_id, step=step, at=self.at, values=values)
            before = last[1] if len(last) > 1 else None
        else:
            n = last[0].n + 1 if last else 1
            point = Point(n, self.seq_id, step, self.at, False, self._raw())
            before = last[0] if last else None
        return closed(point, before) if self.ends_step else point

    def _raw(self) -> dict[str, float]:
        named = {name.removeprefix("optim/"): value for name, value in self.metrics.items()}
        named = {name: value for name, value in named.items() if name not in EXACT}
        times = {"wait_s:max": self.wait_s, "compute_s:max": self.compute_s}
        if not self.ends_step:
            times |= {_TRAINED: float(self.tokens), _DATUMS: float(self.datums)}
        return _kept({**named, **times})


def merged(before: Mapping[str, float], new: Mapping[str, float]) -> dict[str, float]:
    """Two sets of numbers of one step as one, reduced by the suffix of their names; without one the
    newer wins."""
    weights = before.get(_DATUMS, 0.0), new.get(_DATUMS, 0.0)
    together = {**before, **new}
    for name in before.keys() & new.keys():
        reduce = REDUCERS.get(name.partition(":")[2])
        if reduce is not None:
            together[name] = reduce((before[name], new[name]), weights)
    return _kept(together)


def closed(point: Point, before: Point | None) -> Point:
    """The point of a step that has ended, under the names people read."""
    values = dict(shown(point.values))
    if before is not None and point.at > before.at:
        values["step_s"] = single(point.at - before.at)
        if "tokens" in values:
            values["tokens_per_s"] = single(values["tokens"] / (point.at - before.at))
    return point._replace(done=True, values=values)


def shown(values: Mapping[str, float]) -> dict[str, float]:
    """The numbers of an unfinished point under the names people read."""
    found = {_read_as(name): value for name, value in values.items() if name != _DATUMS}
    counted = values.get("tokens:sum", 0.0)
    if "loss:sum" in values:
        found["loss"] = single(values["loss:sum"] / (counted or 1.0))
    return found


def values_of(point: Point) -> Mapping[str, float]:
    """A point's numbers under the names people read, whether its step has ended or not."""
    return point.values if point.done else shown(point.values)


def _read_as(name: str) -> str:
    if name == _TRAINED:
        return "tokens"
    plain, _, rule = name.partition(":")
    return plain if rule == "mean" or plain in ("wait_s", "compute_s", "sampler_gap_max") else name


def single(value: float) -> float:
    """As it is stored in the end: a number must not change when its point grows old."""
    return float(np.float32(value))


def _kept(values: Mapping[str, float]) -> dict[str, float]:
    """Finite numbers with names of sensible length, and not too many of them."""
    good = {
        name: single(value)
        for name, value in values.items()
        if len(name) <= _LONGEST_NAME and math.isfinite(value) and abs(value) < 3e38
    }
    return dict(list(good.items())[:_MOST_METRICS])
