"""Uptime: how long the server was listening, and which instant lies that far back.

The wall clock jumps, and goes on while the machine sleeps or the process is stopped. Timeouts for
unused things (sessions, results, records, unnamed weights) therefore count only the time in which a
client could have come for them. Stored instants are the wall clock's; `before` translates. Time
before this start of the server counts as the wall clock had it.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from tinkex.server.clock import Clock

_LONGEST_LOOK_S = 60.0
"""At most this much counts between two looks: the rest was not listened to."""
_JUMP_S = 1.0
_STRETCHES = 1024


@dataclass(slots=True)
class _Stretch:
    """A stretch of uninterrupted listening, by the wall clock from `start` on."""

    start: float
    seconds: float = 0.0

    @property
    def end(self) -> float:
        return self.start + self.seconds


class Listening:
    """Must be told to `look` every few seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looked = clock.monotonic()
        self._stretches = deque([_Stretch(clock.now())], maxlen=_STRETCHES)
        self.seconds = 0.0
        """Seconds listened in this life of the server, as of the last look."""

    def look(self) -> None:
        """Count the time since the last look."""
        monotonic, wall = self._clock.monotonic(), self._clock.now()
        passed = min(monotonic - self._looked, _LONGEST_LOOK_S)
        self._looked = monotonic
        self.seconds += passed
        if abs(wall - passed - self._stretches[-1].end) > _JUMP_S:
            self._stretches.append(_Stretch(wall - passed))
        self._stretches[-1].seconds += passed

    def before(self, seconds: float) -> float:
        """An instant of the wall clock: what was stamped earlier is older than `seconds`. Where the
        clock was set back, instants come twice; then this is the earliest of them, so that nothing
        counts as older than it is."""
        earliest = math.inf
        for stretch in reversed(self._stretches):
            if stretch.seconds >= seconds:
                return min(earliest, stretch.end - seconds)
            seconds -= stretch.seconds
            earliest = min(earliest, stretch.start)
        return min(earliest, self._stretches[0].start - seconds)
