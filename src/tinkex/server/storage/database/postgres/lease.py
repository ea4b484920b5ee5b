"""The lease: which server works with a PostgreSQL database now, and no other.

A server that takes it gets a number one higher than any before. Every commit of it raises a mark in
the same row on the condition that the number is still the newest, in the same transaction: one that
stood still while another took over can never write again. The mark also tells, after a connection
broke at the worst moment, whether the last batch was committed. The lease runs out by the
database's clock unless it is renewed, sooner if its holder's connection is gone; one that is given
back is free at once.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from typing import NoReturn, TypeVar

import psycopg

from tinkex.server.storage.database import Store
from tinkex.server.storage.database.migrations import migrate
from tinkex.server.storage.database.postgres.connection import PostgresConnection
from tinkex.server.storage.database.postgres.pipelined import PipelinedWriting
from tinkex.server.storage.database.transactions import (
    DatabaseError,
    DatabaseUnavailable,
    Transaction,
)
from tinkex.server.storage.database.writer import ThreadWriter

T = TypeVar("T")
logger = logging.getLogger(__name__)

LIFETIME_S = 8.0
RENEWED_EVERY_S = 1.0
GONE_AFTER_S = 2.5
"""Seconds without renewal after which a lease ends, once the database sees no connection of its
holder."""
COMES_BACK_S = 5.0
"""Seconds that the holder has to return to a database that was away. Its lease ran out because
nobody could renew it, and starting another server would cost its users more than waiting."""
ASKED_EVERY_S = 0.5


class LeaseHeld(Exception):
    """Another server has the database; the message says which."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"the database is in use by {holder}")
        self.holder = holder


class Lease:
    """Held until `give_back`. `on_lost` is called when another server has taken it. `number` is the
    fencing number, `home` names the files that belong to the rows; `is_new` if there are no rows
    yet."""

    def __init__(
        self,
        url: str,
        connection: PostgresConnection,
        number: int,
        home: str,
        version: int,
        follows: str = "",
    ) -> None:
        self._url, self._connection = url, connection
        self._follows = follows
        self.number = number
        self.home = home
        self.is_new = version == 0
        self.on_lost: Callable[[], object] = _end_process
        self._over = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="tinkex-lease", daemon=True)
        self._keeper.start()

    def follows_one_at(self, port: int) -> bool:
        """Whether it was taken from a server of this host and port that did not give it back. That
        server may hang, and then keeps its port."""
        return self._follows.endswith(f":{port}") and f"{_here()}, " in self._follows

    def open_store(self) -> Store:
        """The database, brought to the newest version."""
        writing = PostgresConnection(self._url)
        try:
            migrate(writing)
            reading, querying, browsing = (PostgresConnection(self._url) for _ in range(3))
        except BaseException:
            writing.close()
            raise
        pipelined = PipelinedWriting(writing, self.number, self._lost)
        return Store(ThreadWriter(writing, pipelined.commit), reading, querying, browsing)

    def read(self, work: Callable[[Transaction], T]) -> T:
        """The lease's row; blocks."""
        with closing(PostgresConnection(self._url)) as connection:
            return work(connection)

    def name(self, holder: str) -> None:
        """Record the address of this server, for servers that wait."""
        text = describe(holder)
        self._connection.execute(
            "UPDATE lease SET holder = ? WHERE number = ?", (text, self.number)
        )

    def give_back(self) -> None:
        """Give the lease back: the next server need not wait."""
        self._stop_keeping()
        free = "UPDATE lease SET until = 'epoch' WHERE number = ?"
        try:
            self._connection.execute(free, (self.number,))
        except psycopg.Error as error:
            logger.warning("the lease will run out by itself: %s", error)
        self._connection.close()

    def _stop_keeping(self) -> None:
        self._over.set()
        if threading.current_thread() is not self._keeper:
            self._keeper.join()

    def _keep(self) -> None:
        is_away = False
        while not self._over.wait(RENEWED_EVERY_S):
            try:
                if not _renewed(self._connection, self.number):
                    self._lost()
                    return
                if is_away:
                    logger.info("the database takes writes again")
                is_away = False
            except psycopg.Error as error:
                why = self._connection.translated(error)
                if not self._connection.recovered(error, RENEWED_EVERY_S) and not is_away:
                    logger.warning("the database takes no writes: %s; clients wait", why)
                    is_away = True

    def _lost(self) -> None:
        self._over.set()
        logger.critical("another server has taken over this database; this one stops")
        self.on_lost()


def take(url: str, address: str = "") -> Lease:
    """Take the lease if it is free, else raise `LeaseHeld`."""
    connection = _founded(url)
    try:
        return _taken(url, connection, describe(address))
    except BaseException:
        connection.close()
        raise


def take_from_the_dead(url: str) -> Lease:
    """The same, after waiting long enough to tell whether the holder was killed."""
    until = time.monotonic() + GONE_AFTER_S + 2 * ASKED_EVERY_S
    while True:
        try:
            return take(url)
        except LeaseHeld:
            if time.monotonic() > until:
                raise
        time.sleep(ASKED_EVERY_S)


def wait(url: str, address: str, tell: Callable[[str], object]) -> Lease:
    """Take the lease as soon as the database is there and it is free. `tell` is called with the
    reason for waiting, whenever that changes. Raises `DatabaseError` where waiting would not
    help."""
    connection, told, was_away = None, "", 0.0
    try:
        while True:
            try:
                connection = connection or _founded(url)
                may_come_back = time.monotonic() < was_away + COMES_BACK_S
                return _taken(url, connection, describe(address), only_free=may_come_back)
            except LeaseHeld as held:
                why = f"{held}: waiting to take over when it stops"
            except DatabaseUnavailable as error:
                why = f"{error}: waiting for the database"
                _close(connection)
                connection, was_away = None, time.monotonic()
            if why != told:
                tell(why)
                told = why
            time.sleep(ASKED_EVERY_S)
    except BaseException:
        _close(connection)
        raise


def _close(connection: PostgresConnection | None) -> None:
    if connection is not None:
        connection.close()


def _founded(url: str) -> PostgresConnection:
    connection = PostgresConnection(url)
    try:
        connection.found()
    except psycopg.Error as error:
        connection.close()
        problem = connection.translated(error)
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            fix = "the role has to create the schema tinkex: GRANT CREATE ON DATABASE … TO …"
            raise DatabaseError(f"{problem}; {fix}") from error
        raise problem from error
    return connection


def describe(address: str) -> str:
    who = f"process {os.getpid()}{_here()}"
    return f"{who}, a server at {address}" if address else who


def _here() -> str:
    return f" on {socket.gethostname()}"


def _taken(
    url: str, connection: PostgresConnection, holder: str, *, only_free: bool = False
) -> Lease:
    """Take the lease if it is free or has run out; `only_free`: if nobody has it."""
    try:
        holder_before, was_given_back = connection.execute(
            "SELECT holder, until = 'epoch' FROM lease"
        ).fetchone()
        row = connection.execute(
            """UPDATE lease SET number = number + 1, batch = 0, holder = :holder,
                home = COALESCE(home, :home), backend = pg_backend_pid(),
                until = clock_timestamp() + :lifetime * interval '1 s'
                WHERE until = 'epoch' OR (:only_free = 0 AND (
                    until < clock_timestamp() OR (
                        until < clock_timestamp() + :spare * interval '1 s'
                        AND backend NOT IN (SELECT pid FROM pg_stat_activity))))
                RETURNING number, home, version""",
            {
                "holder": holder,
                "home": uuid.uuid4().hex,
                "lifetime": LIFETIME_S,
                "spare": LIFETIME_S - GONE_AFTER_S,
                "only_free": only_free,
            },
        ).fetchone()
        if row is None:
            (other,) = connection.execute("SELECT holder FROM lease").fetchone()
            raise LeaseHeld(other)
    except psycopg.Error as error:
        raise connection.translated(error) from error
    number, home, version = row
    follows = "" if was_given_back else holder_before
    return Lease(url, connection, number, home, version, follows)


def _renewed(connection: PostgresConnection, number: int) -> bool:
    changed = connection.execute(
        """UPDATE lease SET until = clock_timestamp() + :lifetime * interval '1 s',
            backend = pg_backend_pid() WHERE number = :number""",
        {"lifetime": LIFETIME_S, "number": number},
    )
    return changed.rowcount == 1


def _end_process() -> NoReturn:
    """End this process at once: another server is now responsible for the files."""
    os._exit(75)
