"""The database: rows only, one module per table with plain SQL, all writes through one thread.

A table module is functions of a connection and frozen rows. `Store` says where they run: `write`
returns when the work is on disk, `post` queues it in the same order without waiting, `read` runs
at once on a reading connection and belongs to short indexed lookups, `query` does it off the loop.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from tinkex.server.storage.database.migrations import migrate
from tinkex.server.storage.database.writer import ThreadWriter, Writer

T = TypeVar("T")


class Store:
    """An open database. Close it, or the last posted writes may be lost."""

    def __init__(self, writer: Writer, reader: sqlite3.Connection) -> None:
        self._writer = writer
        self._reader = reader
        self._reading = threading.Lock()

    def write(self, work: Callable[[sqlite3.Connection], T]) -> Awaitable[T]:
        """Run `work` in the next commit; its value is there once that is durable."""
        return self._writer.write(work)

    def post(self, work: Callable[[sqlite3.Connection], object]) -> None:
        """Run `work` in the next commit, in order with all other writes, without waiting."""
        self._writer.post(work)

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a short lookup now and return its value."""
        with self._reading:
            return work(self._reader)

    async def query(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a lookup of any size off the event loop."""
        return await asyncio.to_thread(self.read, work)

    def close(self) -> None:
        self._writer.close()
        with self._reading:
            self._reader.close()


def open_store(path: Path) -> Store:
    """Open or create the database at `path` and bring it to the newest version."""
    writing = connect(path)
    try:
        migrate(writing)
        reading = connect(path)
    except BaseException:
        writing.close()
        raise
    return Store(ThreadWriter(writing), reading)


def connect(path: Path) -> sqlite3.Connection:
    """A connection whose commits survive a power cut, in autocommit mode."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.row_factory = sqlite3.Row
    return connection
