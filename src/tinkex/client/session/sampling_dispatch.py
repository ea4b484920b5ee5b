"""How fast samples may be sent to the server: numbers, bytes, and backpressure.

One per holder, so all samplers of a session slow down together. Used on the SDK's loop only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from tinkex.client.api.api import Api
from tinkex.client.concurrency.budgets import ByteBudget
from tinkex.client.events import bus as events
from tinkex.wire.limits import SMALL_SAMPLE_BYTES

CONCURRENT_DISPATCHES = 400
THROTTLED_DISPATCHES = 10
THROTTLED_BYTE_FACTOR = 20


class SamplingDispatch:
    """Admission to ``asample``."""

    def __init__(self, api: Api, budget: ByteBudget) -> None:
        self._api = api
        self._bytes = budget
        self._slots = asyncio.Semaphore(CONCURRENT_DISPATCHES)
        self._throttled_slots = asyncio.Semaphore(THROTTLED_DISPATCHES)
        self._held_until = 0.0

    def hold(self, estimated_bytes: int) -> None:
        """The server asked for less: nobody submits for a while."""
        timings = self._api.config.timings
        small = estimated_bytes <= SMALL_SAMPLE_BYTES
        seconds = timings.sample_hold_small if small else timings.sample_hold_large
        self._held_until = max(self._held_until, time.monotonic() + seconds)
        self._api.bus.emit(events.SAMPLING_BACKPRESSURE, delay=seconds)

    @asynccontextmanager
    async def admission(self, estimated_bytes: int) -> AsyncIterator[None]:
        """The block may submit a request of this size."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._slots)
            throttled = self._recently_held
            if throttled:
                await stack.enter_async_context(self._throttled_slots)
            factor = THROTTLED_BYTE_FACTOR if throttled else 1
            await stack.enter_async_context(self._bytes.holding(estimated_bytes * factor))
            while (remaining := self._held_until - time.monotonic()) > 0:
                await asyncio.sleep(remaining)
            yield

    @property
    def _recently_held(self) -> bool:
        window = self._api.config.timings.sample_throttle_window
        return time.monotonic() < self._held_until + window and self._held_until > 0.0
