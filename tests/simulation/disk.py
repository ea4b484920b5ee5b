"""A disk that is slow, full at times, and forgets at a power cut what was not synced."""

from __future__ import annotations

import asyncio
import errno
import random
from pathlib import Path
from typing import Any

from tinkex.server.storage.blobs import Meanwhile, SegmentBlobs
from tinkex.server.storage.database import Store
from tinkex.server.storage.database.commit import Job, Work, commit_batch
from tinkex.server.storage.database.migrations import migrate
from tinkex.server.storage.database.sqlite import SqliteConnection, connect
from tinkex.server.storage.database.transactions import DatabaseUnavailable


class Disk:
    """What one server's disk does today."""

    def __init__(self, dice: random.Random, full: float) -> None:
        self.dice = dice
        self._full = full
        self.lost_power = False
        self.faults = 0

    def is_full(self) -> bool:
        if self.dice.random() < self._full:
            self.faults += 1
            return True
        return False


class SimulatedWriter:
    """Commits batches after a drawn delay; a power cut loses those not committed."""

    def __init__(self, connection: SqliteConnection, disk: Disk) -> None:
        self._connection, self._disk = connection, disk
        self._queue: list[tuple[Job, asyncio.Future[Any] | None]] = []
        self._armed = False

    async def write(self, work: Work) -> Any:
        waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._queue.append((Job(work), waiter))
        self._arm()
        return await waiter

    def post(self, work: Work) -> None:
        self._queue.append((Job(work), None))
        self._arm()

    def close(self) -> None:
        if not self._disk.lost_power:
            self._commit()
        self._connection.close()

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            delay = self._disk.dice.choice((0.0, 0.001, 0.01, 0.4))
            asyncio.get_running_loop().call_later(delay, self._commit)

    def _commit(self) -> None:
        if self._disk.lost_power:
            return
        batch, self._queue, self._armed = self._queue, [], False
        jobs = [job for job, _ in batch]
        if self._disk.is_full():
            for job in jobs:
                job.error = DatabaseUnavailable("database or disk is full")
        elif jobs:
            commit_batch(self._connection, jobs)
        for job, waiter in batch:
            if waiter is not None and not waiter.done():
                if job.error is not None:
                    waiter.set_exception(job.error)
                else:
                    waiter.set_result(job.value)


class SimulatedBlobs(SegmentBlobs):
    """Writes that fail for want of room, leaving half of their bytes."""

    def __init__(self, root: Path, first: int, disk: Disk) -> None:
        super().__init__(root, first)
        self._disk = disk

    def put(self, name: str, data: bytes, meanwhile: Meanwhile = None) -> None:
        if self._disk.lost_power:
            raise OSError(errno.EIO, "no power")
        if self._disk.is_full():
            self._tear(name, data)
            raise OSError(errno.ENOSPC, "No space left on device")
        super().put(name, data, meanwhile)

    def _tear(self, name: str, data: bytes) -> None:
        segment, offset, _ = name.split("-")
        path = self._path(int(segment))
        with path.open("r+b" if path.exists() else "wb") as file:
            file.seek(int(offset))
            file.write(data[: self._disk.dice.randint(0, len(data))])


def open_simulated(path: Path, disk: Disk) -> Store:
    """The same database as the server's; only the writer's thread and the syncs are ours."""
    writing, reading, querying, browsing = (connect(path, "OFF") for _ in range(4))
    migrate(writing)
    return Store(SimulatedWriter(writing, disk), reading, querying, browsing)
