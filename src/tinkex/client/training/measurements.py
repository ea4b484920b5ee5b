"""Metrics of a run's operations, reported in the order of the calls.

Results arrive in any order; a step's numbers make sense only together and in order. A place is
taken when an operation is called and filled when its result is there. Filled places leave from the
front. A failed operation leaves its place without a report.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["forward_backward", "optim_step"]
Report = Callable[[Kind, Mapping[str, float]], None]


@dataclass(eq=False, slots=True)
class Place:
    """An operation whose metrics are awaited; `also` is known before it runs."""

    kind: Kind
    also: Mapping[str, float]
    metrics: Mapping[str, float] | None = None
    is_filled: bool = False


class Measurements:
    """The places of one run. Taken on any thread, filled on the SDK's."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._places: deque[Place] = deque()
        self._lock = threading.Lock()

    def expect(self, kind: Kind, also: Mapping[str, float] | None = None) -> Place:
        """Take a place for an operation that is being asked for."""
        place = Place(kind, also or {})
        with self._lock:
            self._places.append(place)
        return place

    def fill(self, place: Place, metrics: Mapping[str, float] | None) -> None:
        """An operation ended: with metrics, or without."""
        place.metrics, place.is_filled = metrics, True
        for ready in self._leaving():
            if ready.metrics is not None:
                self._report(ready.kind, {**ready.metrics, **ready.also})

    def _leaving(self) -> list[Place]:
        leaving = []
        with self._lock:
            while self._places and self._places[0].is_filled:
                leaving.append(self._places.popleft())
        return leaving
