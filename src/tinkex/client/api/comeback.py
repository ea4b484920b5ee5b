"""Notices at once that a server is back: reconnecting ends the pauses between attempts.

While requests pause because the server cannot be reached, one probe at a time asks for a sign of
life, however many requests wait. Knows nothing about requests and who may repeat them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from tinkex.client.api.outage import Outage
from tinkex.client.api.retry import backoff, jittered
from tinkex.client.http import TransportError

SPREAD_EACH = 0.002
SPREAD_MAX = 2.0


class Comeback:
    """Pauses of one client. `probe` raises `TransportError` while the server cannot be reached.

    `delay` is the time between probes. It doubles, up to `largest`, for every time that a probe was
    answered and the request it woke was not: then probes prove nothing.
    """

    def __init__(
        self, outage: Outage, probe: Callable[[], Awaitable[object]], delay: float, largest: float
    ) -> None:
        self._outage, self._probe = outage, probe
        self._delay, self._largest = delay, largest
        self._misled = 0
        self._waiting: set[asyncio.Future[float]] = set()
        self._probing: asyncio.Task[None] | None = None

    async def pause(self, seconds: float) -> None:
        """Sleep this long; less if the server cannot be reached now and is back before that."""
        if not self._outage.is_on:
            await asyncio.sleep(seconds)
            return
        back: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting.add(back)
        self._ensure_probing()
        try:
            await asyncio.wait([back], timeout=seconds)
        finally:
            self._waiting.discard(back)
        if back.done():
            await asyncio.sleep(back.result() * random.random())

    def answered(self) -> None:
        """A request got an answer, whatever it says."""
        self._misled = 0
        if self._outage.is_on:
            self._is_back()

    async def aclose(self) -> None:
        if self._probing is not None and not self._probing.done():
            self._probing.cancel()
            await asyncio.wait([self._probing])

    def _ensure_probing(self) -> None:
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._keep_probing(), name="tinkex-probing")

    async def _keep_probing(self) -> None:
        while self._waiting and self._outage.is_on:
            await asyncio.sleep(jittered(backoff(self._misled, self._delay, self._largest)))
            if self._waiting and self._outage.is_on and await self._reaches():
                self._misled += 1
                self._is_back()

    async def _reaches(self) -> bool:
        try:
            await self._probe()
        except TransportError:
            return False
        return True

    def _is_back(self) -> None:
        """Wake everybody, apart from each other if they are many."""
        self._outage.over()
        spread = min(SPREAD_MAX, SPREAD_EACH * (len(self._waiting) - 1))
        for back in self._waiting:
            if not back.done():
                back.set_result(spread)
