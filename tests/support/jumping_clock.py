"""The machine's clock, moved by hand."""

from __future__ import annotations

import time


class JumpingClock:
    """`wall` is a jump of the wall clock; `awake` is time that only a running machine counts."""

    def __init__(self) -> None:
        self.wall = self.awake = 0.0

    def now(self) -> float:
        return time.time() + self.wall + self.awake

    def monotonic(self) -> float:
        return time.monotonic() + self.awake
