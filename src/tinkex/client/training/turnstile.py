"""Ordering: operations of one training run reach the server in the order they were called.

An operation draws its numbers when it is called, from any thread. Its submission starts when every
earlier one has been answered or has failed, so one refused request never blocks the ones after it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turnstile:
    """Hands out consecutive numbers and lets their holders through one after another."""

    def __init__(self, first: int) -> None:
        self._next_free = first
        self._now_serving = first
        self._lock = threading.Lock()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._done: dict[int, int] = {}

    def draw(self, count: int = 1) -> range:
        """The next ``count`` numbers. Whoever draws must enter, or later holders wait for ever."""
        with self._lock:
            first = self._next_free
            self._next_free += count
        return range(first, first + count)

    @asynccontextmanager
    async def turn(self, numbers: range) -> AsyncIterator[None]:
        """The block runs when all earlier numbers have left; leaving it, however, moves on."""
        try:
            if self._now_serving != numbers.start:
                place = asyncio.get_running_loop().create_future()
                self._waiting[numbers.start] = place
                await place
            yield
        finally:
            self._waiting.pop(numbers.start, None)
            self._leave(numbers)

    def _leave(self, numbers: range) -> None:
        # Out of order when a holder was cancelled before its turn.
        self._done[numbers.start] = numbers.stop
        while (stop := self._done.pop(self._now_serving, None)) is not None:
            self._now_serving = stop
        place = self._waiting.get(self._now_serving)
        if place is not None and not place.done():
            place.set_result(None)
