"""Idle-time check that what the database names is on the disk and intact.

Checks the database itself, the bodies and results of operations, the snapshots of runs, and in each
round the bytes of one checkpoint and of one snapshot. It repairs nothing: findings are logged and
counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tinkex.server.storage import manifest
from tinkex.server.storage.database import checkpoints, snapshots
from tinkex.server.storage.database import operations as operations_table
from tinkex.server.storage.database.transactions import DatabaseError, Transaction
from tinkex.server.storage.folders import Folders
from tinkex.server.storage.home_storage import HomeStorage
from tinkex.server.storage.objects.store import NoSuchObject
from tinkex.server.storage.store_threads import at_store

logger = logging.getLogger(__name__)


class Integrity:
    """`checks` counts the rounds so far, `problems` what the last one found."""

    def __init__(self, storage: HomeStorage) -> None:
        self._store, self._blobs = storage.store, storage.blobs
        self._weights, self._snapshots = storage.weights, storage.snapshots
        self.checks = 0
        self.problems = 0

    async def live(self, interval_s: float, is_idle: Callable[[], bool]) -> None:
        """Check now and then, as long as nobody is waiting for work."""
        while True:
            await asyncio.sleep(interval_s)
            if is_idle():
                try:
                    await self.check()
                except (OSError, DatabaseError):
                    logger.exception("the integrity check could not be made")

    async def check(self) -> list[str]:
        """One round; what is not as it should be, in words."""
        found = [
            *(f"database: {each}" for each in await self._store.problems()),
            *await self._missing(operations_table.blob_names, self._blobs.missing, "blob"),
            *await self._missing(snapshots.folders, _lacking(self._snapshots), "snapshot"),
            *await self._missing(checkpoints.folders, _lacking(self._weights), "weights"),
            *await self._one_checkpoint(),
            *await self._one_snapshot(),
        ]
        for problem in found:
            logger.error("integrity: %s", problem)
        self.checks, self.problems = self.checks + 1, len(found)
        return found

    async def _missing(
        self,
        names: Callable[[Transaction], set[str]],
        lacking_of: Callable[[set[str]], set[str]],
        what: str,
    ) -> list[str]:
        """Names without their thing; one that was dropped meanwhile is named no more."""
        named = await self._store.query(names)
        lacking = await at_store(lacking_of, named)
        still = await self._store.query(names) if lacking else set()
        return [f"{what} {name} is missing or damaged" for name in sorted(lacking & still)]

    async def _one_checkpoint(self) -> list[str]:
        """Read all bytes of one checkpoint, another one in each round."""
        folders = sorted(await self._store.query(checkpoints.folders))
        if not folders:
            return []
        name = folders[self.checks % len(folders)]
        try:
            await self._verify(self._weights, name)
        except (manifest.CorruptCheckpoint, NoSuchObject) as error:
            if name in await self._store.query(checkpoints.folders):
                return [f"weights {name}: {error}"]
        return []

    async def _one_snapshot(self) -> list[str]:
        """The same for the snapshots."""
        rows = [row for row in await self._store.query(snapshots.every) if row.digest]
        if not rows:
            return []
        row = sorted(rows, key=lambda row: row.folder)[self.checks % len(rows)]
        try:
            await self._verify(self._snapshots, row.folder, row.digest)
        except (manifest.CorruptCheckpoint, NoSuchObject) as error:
            if row.folder in await self._store.query(snapshots.folders):
                return [f"snapshot {row.folder}: {error}"]
        return []

    async def _verify(self, folders: Folders, name: str, digest: str | None = None) -> None:
        if not folders.is_here(name):
            return  # it is checked when it is brought here; the store keeps its own
        with folders.using(name):
            await asyncio.to_thread(manifest.verify, await folders.here(name), digest)


def _lacking(folders: Folders) -> Callable[[set[str]], set[str]]:
    return lambda names: {name for name in names if not folders.has(name)}
