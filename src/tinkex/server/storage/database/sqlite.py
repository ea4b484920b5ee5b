"""SQLite: the database of a server that has its home to itself, a file in it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal

from tinkex.server.storage.database.migrations import migrate
from tinkex.server.storage.database.transactions import (
    DatabaseError,
    DatabaseUnavailable,
    Transaction,
)


class SqliteConnection(sqlite3.Connection):
    """A `Connection`. Statements go straight to the driver: they are what takes the time."""

    def begin(self) -> None:
        self.execute("BEGIN IMMEDIATE")

    def translated(self, error: BaseException) -> BaseException:
        if isinstance(error, sqlite3.OperationalError):
            return DatabaseUnavailable(str(error))
        return DatabaseError(str(error)) if isinstance(error, sqlite3.Error) else error

    def recovered(self, _: BaseException) -> bool:
        return False

    def version(self) -> int:
        (number,) = self.execute("PRAGMA user_version").fetchone()
        return int(number)

    def set_version(self, number: int) -> None:
        self.execute(f"PRAGMA user_version = {number}")

    def define(self, statement: str) -> None:
        self.execute(statement)

    def problems(self) -> list[str]:
        found = [str(row[0]) for row in self.execute("PRAGMA quick_check(5)")]
        return [] if found == ["ok"] else found


def connect(path: Path, synchronous: Literal["FULL", "OFF"] = "FULL") -> SqliteConnection:
    """A connection whose commits survive a power cut, in autocommit mode."""
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, timeout=30, factory=SqliteConnection
    )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.row_factory = sqlite3.Row
    return connection


def upgrade(path: Path) -> None:
    """Bring a file to the newest version, and see that it can be written. Raises `DatabaseError`
    or `NewerDatabase`."""
    try:
        with closing(connect(path)) as connection:
            migrate(connection)
            _check_writable(connection)
    except sqlite3.Error as error:
        raise DatabaseError(str(error)) from error


def _check_writable(connection: SqliteConnection) -> None:
    """One that somebody has locked at the moment is waited for by whoever writes."""
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        connection.begin()
        connection.set_version(connection.version())
        connection.rollback()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_READONLY:
            raise


@contextmanager
def only_reading(path: Path) -> Iterator[Transaction]:
    """The database of a home that somebody else may be serving."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        yield connection
