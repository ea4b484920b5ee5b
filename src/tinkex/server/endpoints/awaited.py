"""A wake-up call with a time limit, cheap enough to be awaited once for every token of a stream.

An `asyncio.Event` under `asyncio.timeout` makes a timer, a cancellation scope and a queue for every
wait. Here one timer stays: when it fires it checks how long the wait has lasted, and is set again
if that is not long enough.
"""

from __future__ import annotations

import asyncio


class Signal:
    """Set by anyone, awaited by one task at a time."""

    def __init__(self) -> None:
        self._is_set = False
        self._until = 0.0
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self) -> None:
        self._is_set = True
        self._wake()

    async def wait(self, seconds: float) -> bool:
        """Whether it was set since the last wait, or is set within so long."""
        if not self._is_set:
            self._waiter = asyncio.get_running_loop().create_future()
            self._limit(seconds)
            try:
                await self._waiter
            finally:
                self._waiter = None
        found, self._is_set = self._is_set, False
        return found

    def close(self) -> None:
        """End the current and all later waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _limit(self, seconds: float) -> None:
        """End the wait after so long."""
        loop = asyncio.get_running_loop()
        self._until = loop.time() + seconds
        if self._timer is not None and self._timer.when() > self._until:
            self.close()
        if self._timer is None:
            self._timer = loop.call_at(self._until, self._look)

    def _look(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        if loop.time() >= self._until:
            self._wake()
        elif self._waiter is not None:
            self._timer = loop.call_at(self._until, self._look)
