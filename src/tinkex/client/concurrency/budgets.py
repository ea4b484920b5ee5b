"""Limits on how much may be in flight at once: bytes, and numbers of requests.

Budgets are soft, as the protocol requires: a request waits only while the balance is negative, so
one oversize item always passes. Used on the SDK's loop only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ByteBudget:
    """A number of bytes that may be in use at once, handed out in order of asking."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._balance = size
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def used(self) -> int:
        return self._size - self._balance

    async def take(self, count: int) -> None:
        if self._balance < 0 or self._waiting:
            await self._queue()
        self._balance -= count

    def give_back(self, count: int) -> None:
        self._balance += count
        self._wake_next()

    @asynccontextmanager
    async def holding(self, count: int) -> AsyncIterator[None]:
        await self.take(count)
        # Taking may leave balance for the next in line.
        self._wake_next()
        try:
            yield
        finally:
            self.give_back(count)

    async def _queue(self) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place in self._waiting:
                self._waiting.remove(place)
            else:
                self._wake_next()  # the turn was already ours: pass it on
            raise

    def _wake_next(self) -> None:
        while self._waiting and self._balance >= 0:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
