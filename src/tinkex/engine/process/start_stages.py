"""The stages of an engine's start in seconds, for the log of a slow start."""

from __future__ import annotations

import time
from collections.abc import Callable


class StartStages:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._seconds: dict[str, float] = {}

    def ended(self, stage: str) -> None:
        """Count the time since the last stage as this one's."""
        now = self._clock()
        self._seconds[stage] = now - self._last
        self._last = now

    def __str__(self) -> str:
        return ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in self._seconds.items())
