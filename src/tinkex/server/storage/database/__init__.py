"""The database: rows only, one module per table with plain SQL, all writes through one thread.

A table module has functions of a transaction, and frozen rows. `Store` says where they run:
`write` returns when the work is on disk, `post` queues it in the same order without waiting,
`read` looks up a few rows, `query` anything, `browse` what people look at. None of them works on
the event loop. Only `sqlite` and `postgres` know which database it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from tinkex.server.fair_threads import FairThreads
from tinkex.server.storage.database.connections import Connection
from tinkex.server.storage.database.migrations import migrate
from tinkex.server.storage.database.sqlite import connect
from tinkex.server.storage.database.transactions import Transaction
from tinkex.server.storage.database.writer import ThreadWriter, Writer

_MOST_WAITING = 256
"""Lookups of one tenant."""

T = TypeVar("T")
P = ParamSpec("P")


class Store:
    """An open database. Close it, or the last posted writes may be lost."""

    def __init__(
        self, writer: Writer, reader: Connection, querier: Connection, browser: Connection
    ) -> None:
        self._writer = writer
        self._reader = _Reader(reader, "tinkex-reader")
        self._querier = _Reader(querier, "tinkex-querier")
        self._browser = _Browser(browser)

    def write(
        self, work: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]:
        """Run `work` in the next commit; returns its value once that is durable."""
        return self._writer.write(_bound(work, *args, **kwargs))

    def post(
        self, work: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Run `work` in the next commit, in order with all other writes, without waiting."""
        self._writer.post(_bound(work, *args, **kwargs))

    async def read(
        self, work: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Look up something by its key. What takes longer is for `query`."""
        return await self._reader.run(_bound(work, *args, **kwargs))

    async def query(
        self, work: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a lookup of any size on a connection and a thread of its own, so that no `read` waits
        for it. Accepted work may wait for it; what people look at uses `browse`."""
        return await self._querier.run(_bound(work, *args, **kwargs))

    async def browse(
        self,
        tenant: str | None,
        work: Callable[Concatenate[Transaction, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Look up what a tenant, or with None an operator, wants to see, in turn with others who
        look. However long that takes, no work of the server waits for it."""
        return await self._browser.run(tenant or "", _bound(work, *args, **kwargs))

    async def problems(self) -> list[str]:
        """What the database finds wrong with its own files."""
        return await self._querier.problems()

    def close(self) -> None:
        self._writer.close()
        self._reader.close()
        self._querier.close()
        self._browser.close()


class _Reader:
    """A connection and the one thread that reads through it."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._thread = ThreadPoolExecutor(1, name)

    async def run(self, work: Callable[[Connection], T]) -> T:
        look = partial(_look, self._connection, work)
        return await asyncio.get_running_loop().run_in_executor(self._thread, look)

    async def problems(self) -> list[str]:
        return await self.run(lambda connection: connection.problems())

    def close(self) -> None:
        self._thread.shutdown()
        self._connection.close()


class _Browser:
    """A connection and the one thread in which tenants look through it in turns."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._thread = FairThreads(1, "tinkex-browser", most=1, waiting=_MOST_WAITING)

    async def run(self, tenant: str, work: Callable[[Connection], T]) -> T:
        return await self._thread.run(tenant, partial(_look, self._connection, work))

    def close(self) -> None:
        self._thread.close(wait=True)
        self._connection.close()


def _look(connection: Connection, work: Callable[[Connection], T]) -> T:
    """What `work` finds, once the connection is there."""
    while True:
        try:
            return work(connection)
        except Exception as error:
            ours = connection.translated(error)
            if ours is error:
                raise
            if not connection.recovered(error):
                raise ours from error


def _bound(
    work: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
) -> Callable[[Transaction], T]:
    return lambda transaction: work(transaction, *args, **kwargs)


def open_store(path: Path) -> Store:
    """Open or create the database at `path` and bring it to the newest version."""
    writing = connect(path)
    try:
        migrate(writing)
        reading, querying, browsing = connect(path), connect(path), connect(path)
    except BaseException:
        writing.close()
        raise
    return Store(ThreadWriter(writing), reading, querying, browsing)
