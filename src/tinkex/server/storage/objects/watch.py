"""Watches a home's object store: retries pending deletions and logs outages."""

from __future__ import annotations

import asyncio
import logging

from tinkex.server.storage.objects.remote import RemoteObjects
from tinkex.server.storage.store_threads import at_store

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
DELETE_EVERY_S = 5.0


class StoreWatch:
    """`remote` is None where files are all there is; then there is nothing to do."""

    def __init__(self, remote: RemoteObjects | None) -> None:
        self._remote = remote
        self._said: str | None = None

    async def live(self) -> None:
        """Look for ever. Deleting may wait for the store; nobody waits for it."""
        if self._remote is not None:
            await asyncio.gather(self._look_on(self._remote), self._delete(self._remote))

    async def _look_on(self, remote: RemoteObjects) -> None:
        while True:
            self.look(remote.trouble)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _delete(self, remote: RemoteObjects) -> None:
        while True:
            try:
                await at_store(remote.delete_due)
            except Exception:  # whatever it is, the next round is another try
                logger.exception("deleting from the object store failed; it is tried again")
            await asyncio.sleep(DELETE_EVERY_S)

    def look(self, trouble: str | None) -> None:
        """Say once that the store is in trouble, and once that it is not any more."""
        if trouble is not None and self._said is None:
            logger.warning("%s; what needs it waits", trouble)
        elif trouble is None and self._said is not None:
            logger.info("the object store answers again")
        self._said = trouble
