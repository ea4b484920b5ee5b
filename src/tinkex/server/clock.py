"""Time as the server's core sees it: an object passed in, never a module looked up.

Everything that remembers an instant or measures a wait takes a `Clock`, so that a simulation can
control time. Waiting itself goes through the running event loop, which a simulation replaces as a
whole.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """`now` is seconds since the epoch and may be stored; `monotonic` only measures differences."""

    def now(self) -> float: ...

    def monotonic(self) -> float: ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()
