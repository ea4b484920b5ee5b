"""Checks whether the database takes writes: when somebody asks, once for all who ask.

A database that is read-only (a replica, after a failover), locked, on a full disk, or gone can look
well to a server that only reads or has nothing to write.
"""

from __future__ import annotations

import asyncio

from tinkex.server.clock import Clock
from tinkex.server.storage.database import Store
from tinkex.server.storage.database.sessions import write_and_undo
from tinkex.server.storage.database.transactions import DatabaseError

PATIENCE_S = 2.0
"""Seconds for an answer before it counts as none."""
_FRESH_S = 1.0


class DatabaseWatch:
    """Of one server."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._asking: asyncio.Task[str | None] | None = None
        self._asked_at = 0.0

    async def trouble(self) -> str | None:
        """Why nothing can be accepted now, in words; None if it can."""
        asking = self._ask()
        await asyncio.wait([asking], timeout=PATIENCE_S)
        if not asking.done():
            waited = self._clock.monotonic() - self._asked_at
            return f"the database has not taken a write for {max(waited, PATIENCE_S):.0f} s"
        return asking.result()

    def _ask(self) -> asyncio.Task[str | None]:
        """The question under way, or one that was answered a moment ago, or a new one."""
        now, asking = self._clock.monotonic(), self._asking
        if asking is None or (asking.done() and now - self._asked_at >= _FRESH_S):
            self._asked_at = now
            self._asking = asking = asyncio.get_running_loop().create_task(self._answer())
        return asking

    async def _answer(self) -> str | None:
        try:
            await self._store.write(write_and_undo)
        except DatabaseError as error:
            return f"the database takes no writes: {error}"
        return None
