"""Batched polling: per sampler and client, the stream of samples that have ended.

A cursor marks how far a client has read. Cursors start from the clock, so those of an earlier life
of the server are behind every new one. What a client acknowledges is trimmed; what it has not read
stays, up to a limit. Holds no results, only which there are.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from tinkex.server.clock import Clock

_KEPT = 65_536
_BATCH = 4096


class Completion(NamedTuple):
    """The end of one sample, at its place in the feed."""

    cursor: int
    request_id: str
    failed: bool
    size: int


class Completions:
    """The ends of one client's samples, oldest first."""

    def __init__(self, clock: Clock) -> None:
        self._cursor = int(clock.now() * 1_000_000)
        self._events: deque[Completion] = deque(maxlen=_KEPT)
        self._waiters: set[asyncio.Future[None]] = set()
        self._clock = clock
        self._asked_at = clock.monotonic()

    def idle_since(self, instant: float) -> bool:
        """Since when no poll has waited; None while one does."""
        return not self._waiters and self._asked_at <= instant

    def add(self, request_id: str, failed: bool, size: int) -> None:
        self._cursor += 1
        self._events.append(Completion(self._cursor, request_id, failed, size))
        self.wake()

    def wake(self) -> None:
        """Answer the waiting polls with what there is, which may be nothing."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def trim(self, cursor: int) -> None:
        """Forget what is at or before a cursor that the client has sent back."""
        while self._events and self._events[0].cursor <= cursor:
            self._events.popleft()

    async def after(self, cursor: int, seconds: float) -> list[Completion]:
        """The ends after `cursor`. Waits at most this long for the first one; empty if there is
        none."""
        self._asked_at = self._clock.monotonic()
        found = self._after(cursor)
        if not found and seconds > 0:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(waiter, seconds)
            finally:
                self._waiters.discard(waiter)
                self._asked_at = self._clock.monotonic()
            found = self._after(cursor)
        return found

    def _after(self, cursor: int) -> list[Completion]:
        found: Iterable[Completion] = (each for each in self._events if each.cursor > cursor)
        return [each for each, _ in zip(found, range(_BATCH), strict=False)]
