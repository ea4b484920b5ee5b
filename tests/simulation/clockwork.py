"""An event loop whose time is a number: nothing waits, everything happens in a seeded order.

Timers jump the clock; work meant for threads runs on the loop after a drawn delay, or never if the
power fails before.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable
from typing import Any


class Stuck(AssertionError):
    """Nothing is scheduled and nobody will ever wake who waits."""


class _Jump(selectors.SelectSelector):
    """Instead of waiting, time passes."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Stuck("everyone waits for something that cannot come")
        self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """`dice` decides how long work off the loop takes; `torn` is called with what a power cut
    interrupted."""

    def __init__(self, dice: random.Random) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)
        self.dice = dice
        self.under_way: dict[asyncio.Future[Any], Callable[..., Any]] = {}

    def time(self) -> float:
        return self._jump.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Run `func` later, on the loop; at the instant it runs, its effect is on the disk."""
        future: asyncio.Future[Any] = self.create_future()

        def work() -> None:
            if future.cancelled() or future not in self.under_way:
                return
            del self.under_way[future]
            try:
                value = func(*args)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(value)

        self.under_way[future] = func
        self.call_later(self.dice.choice((0.0, 0.001, 0.002, 0.02, 0.3)), work)
        return future


class VirtualClock:
    """The server's clock: the loop's, its wall time jumping now and then. Wall time only."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.jumped = 0.0

    def now(self) -> float:
        return 1_700_000_000.0 + self._loop.time() + self.jumped

    def monotonic(self) -> float:
        return self._loop.time()
