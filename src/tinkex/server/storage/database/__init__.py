"""The database: rows only, one module per table with plain SQL, all writes through one thread.

A table module is functions of a transaction and frozen rows. `Store` says where they run, with the
arguments they are given: `write` returns when the work is on disk, `post` queues it in the same
order without waiting, `query` reads off the loop, `read` at once: only short lookups by key may.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from tinkex.server.storage.database.migrations import migrate
from tinkex.server.storage.database.transactions import Transaction
from tinkex.server.storage.database.writer import ThreadWriter, Writer

T = TypeVar("T")
P = ParamSpec("P")


class Store:
    """An open database. Close it, or the last posted writes may be lost."""

    def __init__(
        self, writer: Writer, reader: sqlite3.Connection, querier: sqlite3.Connection
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._reading = threading.Lock()
        self._querier = querier
        self._querying = threading.Lock()

    def write(
        self, work: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]:
        """Run `work` in the next commit; its value is there once that is durable."""
        return self._writer.write(_bound(work, *args, **kwargs))

    def post(
        self, work: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Run `work` in the next commit, in order with all other writes, without waiting."""
        self._writer.post(_bound(work, *args, **kwargs))

    def read(
        self, work: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Look up something by its key, now. What takes longer is for `query`."""
        with self._reading:
            return work(self._reader, *args, **kwargs)

    async def query(
        self, work: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a lookup of any size off the event loop, on a connection of its own: however long it
        takes, no `read` waits for it."""

        def look() -> T:
            with self._querying:
                return work(self._querier, *args, **kwargs)

        return await asyncio.to_thread(look)

    def close(self) -> None:
        self._writer.close()
        with self._reading, self._querying:
            self._reader.close()
            self._querier.close()


def _bound(
    work: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
) -> Callable[[Transaction], T]:
    return lambda transaction: work(transaction, *args, **kwargs)


def open_store(path: Path) -> Store:
    """Open or create the database at `path` and bring it to the newest version."""
    writing = connect(path)
    try:
        migrate(writing)
        reading, querying = connect(path), connect(path)
    except BaseException:
        writing.close()
        raise
    return Store(ThreadWriter(writing), reading, querying)


@contextmanager
def only_reading(path: Path) -> Iterator[Transaction]:
    """The database of a home that somebody else may be serving."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        yield connection


def problems(transaction: Transaction) -> list[str]:
    """What the database finds wrong with its own file."""
    found = [str(row[0]) for row in transaction.execute("PRAGMA quick_check(5)")]
    return [] if found == ["ok"] else found


def connect(path: Path) -> sqlite3.Connection:
    """A connection whose commits survive a power cut, in autocommit mode."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.row_factory = sqlite3.Row
    return connection
