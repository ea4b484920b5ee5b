"""Device time: how long a unit of work took where it ran, not how long it took to queue it.

A GPU runs behind the host, so a unit is bracketed by two marks in the device's own queue, CUDA
events, which tell the time between them once the device has passed both. On a CPU a mark is an
instant. `Stopwatch` keeps the units in order and lets the host run ahead by two of them: enough to
keep the device busy, and a new request waits for no more than these. Of two long units that are
quickly queued the second is held back until the first is nearly done, so that a request that
arrives meanwhile goes before it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import torch

AHEAD = 2

_SLACK_S = 0.01
_LOOK_S = 0.001
"""A unit is queued so long before the device is expected to be free, and twice what the last took
to be queued; whether the device is free sooner is looked at so often."""


class Mark(Protocol):
    """A place in the device's queue of work."""

    @property
    def passed(self) -> bool: ...

    def wait(self) -> None: ...

    def since(self, earlier: Mark) -> float:
        """Seconds between two marks that have been passed."""


class Instant:
    """A mark where work is done when it returns."""

    passed = True

    def __init__(self) -> None:
        self._at = time.monotonic()

    def wait(self) -> None:
        """It is past."""

    def since(self, earlier: Mark) -> float:
        assert isinstance(earlier, Instant)
        return self._at - earlier._at


class CudaMark:
    """An event in the current stream."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True)
        self._event.record()

    @property
    def passed(self) -> bool:
        return bool(self._event.query())

    def wait(self) -> None:
        self._event.synchronize()

    def since(self, earlier: Mark) -> float:
        assert isinstance(earlier, CudaMark)
        milliseconds: float = earlier._event.elapsed_time(self._event)
        return milliseconds / 1000.0


def marks_of(device: torch.device) -> Callable[[], Mark]:
    """How to mark a place in this device's queue."""
    return CudaMark if device.type == "cuda" else Instant


class _Unit(NamedTuple):
    """The device's marks around it, and the seconds it took to be queued."""

    begin: Mark
    end: Mark
    queued_s: float


class Stopwatch:
    """Times units of work, one after the other."""

    def __init__(
        self,
        mark: Callable[[], Mark],
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._mark, self._now, self._sleep = mark, now, sleep
        self._units: deque[_Unit] = deque()

    def wait(self) -> None:
        """Until the device is no more than one unit behind: there is room for the next."""
        if len(self._units) < AHEAD or self._units[-AHEAD].end.passed:
            return
        before, last = self._units[-AHEAD], self._units[-1]
        before.end.wait()
        # The last one has begun now, and will hardly take less than the one before it.
        early = _SLACK_S + 2 * max(before.queued_s, last.queued_s)
        until = self._now() + before.end.since(before.begin) - early
        while self._now() < until and not last.end.passed:
            self._sleep(_LOOK_S)

    @contextmanager
    def unit(self) -> Iterator[None]:
        """Times what is queued inside the `with`; waits first while the device is far behind."""
        self.wait()
        begun, begin = self._now(), self._mark()
        try:
            yield
        finally:
            self._units.append(_Unit(begin, self._mark(), self._now() - begun))

    def ended(self) -> Iterator[float]:
        """What each unit took that has ended and was not told of yet, the oldest first."""
        while self._units and self._units[0].end.passed:
            unit = self._units.popleft()
            yield unit.end.since(unit.begin)
