"""Autoscaling policy: how many engines a model should have, by its load over time.

Load is a number of engines: busy runs, and sequences being sampled or waiting, each divided by what
one engine should have of them. It is averaged, so that neither a burst nor a client that pauses
between two steps decides. Growing and shrinking have different thresholds, so that no engine comes
and goes under constant load. Knows no engine and no clock of its own.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tinkex.server.settings import Scaling

_ROOM = 0.7
"""An engine is stopped when the load is at most this share of what the others should have."""


class Work(NamedTuple):
    """The work of a model's engines at one moment, started or not."""

    runs: int
    sequences: int


class Policy:
    """The policy for one model: asked every second or so how many engines it should have."""

    def __init__(self, scaling: Scaling, fewest: int, most: int) -> None:
        self._scaling = scaling
        self._fewest, self._most = fewest, most
        self._load = 0.0
        self._asked_at: float | None = None
        self._high_since: float | None = None
        self._low_since: float | None = None

    @property
    def load(self) -> float:
        """Averaged load, in engines."""
        return self._load

    def wanted(self, now: float, work: Work, engines: int) -> int:
        """How many engines there should be when there are `engines`, including those that are
        starting."""
        self._average(now, work)
        high, low = self._load > engines, self._load <= _ROOM * (engines - 1)
        self._high_since = _since(self._high_since, now, holds=high)
        self._low_since = _since(self._low_since, now, holds=low)
        if _lasted(self._high_since, now, self._scaling.grow_s):
            self._high_since = None
            engines = max(engines, math.ceil(self._load))
        elif _lasted(self._low_since, now, self._scaling.shrink_s):
            self._low_since = None
            engines -= 1
        return min(max(engines, self._fewest), self._most)

    def _average(self, now: float, work: Work) -> None:
        scaling = self._scaling
        load = work.runs / scaling.runs_per_engine + work.sequences / scaling.sequences_per_engine
        passed = 0.0 if self._asked_at is None else now - self._asked_at
        self._asked_at = now
        self._load += (load - self._load) * (1 - math.exp(-passed / scaling.average_s))


def _since(before: float | None, now: float, *, holds: bool) -> float | None:
    if not holds:
        return None
    return now if before is None else before


def _lasted(since: float | None, now: float, seconds: float) -> bool:
    return since is not None and now - since >= seconds
