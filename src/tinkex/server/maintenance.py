"""Maintenance: every few seconds each part of the server is asked to end what has expired.

Each part decides what expires and when. Knows none of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from tinkex.server.listening import Listening

logger = logging.getLogger(__name__)

Duty: TypeAlias = Callable[[], Awaitable[object] | None]


class Maintenance:
    """`duties` are done in their order, each under the name it is logged by."""

    def __init__(self, listening: Listening, duties: Mapping[str, Duty]) -> None:
        self._listening = listening
        self._duties = duties

    async def tick(self) -> None:
        """Do what is due now. A failing part is logged and tried again with the next tick."""
        self._listening.look()
        for name, duty in self._duties.items():
            try:
                waiting = duty()
                if waiting is not None:
                    await waiting
            except Exception:  # whatever it is, it must not stop the other parts
                logger.exception("maintenance failed on %s; it is tried again", name)

    async def live(self, interval_s: float) -> None:
        """Tick for ever."""
        while True:
            await asyncio.sleep(interval_s)
            await self.tick()
