"""Moves a home's rows from its own file into PostgreSQL; begun again, it goes on where it stopped.

Every table is copied in the order of its key, piece by piece, so that what is there already is its
beginning. In the end both sides are read again and hashed: only if every table is the same does the
home say that its rows are elsewhere now. Until then nothing has changed for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tinkex.server.storage import home_rows
from tinkex.server.storage.database.migrations import migrate
from tinkex.server.storage.database.postgres import lease
from tinkex.server.storage.database.postgres.connection import PostgresConnection
from tinkex.server.storage.database.postgres.lease import Lease
from tinkex.server.storage.database.sqlite import SqliteConnection, connect
from tinkex.server.storage.database.transactions import Row, Transaction

_PIECE = 1000


class NotMoved(Exception):
    """Why the rows are still where they were, in one line that says what to do."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What is in the database now."""

    rows: int
    sha256: str


@dataclass(frozen=True, slots=True)
class _Table:
    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]

    def pieces(self, db: Transaction, after: Sequence[Any] | None = None) -> Iterator[list[Row]]:
        """All rows behind a key, in its order."""
        while piece := self._piece(db, after):
            yield piece
            after = [piece[-1][column] for column in self.key]

    def _piece(self, db: Transaction, after: Sequence[Any] | None) -> list[Row]:
        columns, key = ", ".join(self.columns), ", ".join(self.key)
        behind = f"WHERE ({key}) > ({_marks(self.key)})" if after is not None else ""
        return db.execute(
            f"SELECT {columns} FROM {self.name} {behind} ORDER BY {key} LIMIT {_PIECE}",
            tuple(after or ()),
        ).fetchall()

    def newest(self, db: Transaction) -> Sequence[Any] | None:
        """The last key."""
        order = ", ".join(f"{column} DESC" for column in self.key)
        row = db.execute(
            f"SELECT {', '.join(self.key)} FROM {self.name} ORDER BY {order} LIMIT 1"
        ).fetchone()
        return None if row is None else tuple(row)

    def hashed(self, db: Transaction, most: int | None = None) -> tuple[int, str]:
        """How many rows there are, and the hash of them; of the first `most` at most."""
        count, digest = 0, hashlib.sha256()
        rows = (row for piece in self.pieces(db) for row in piece)
        for row in islice(rows, most):
            count += 1
            digest.update(repr(tuple(row)).encode())
        return count, digest.hexdigest()

    def put(self, db: Transaction, piece: list[Row]) -> None:
        db.executemany(
            f"INSERT INTO {self.name} ({', '.join(self.columns)}) VALUES ({_marks(self.columns)})",
            [tuple(row) for row in piece],
        )


def move_rows(root: Path, url: str, tell: Callable[[str], object]) -> Moved:
    """Move the rows of a locked home. Raises `NotMoved`, `LeaseHeld` or `DatabaseError`."""
    held = lease.take_from_the_dead(url)
    try:
        _check(root, held)
        (root / _MOVING).write_text(held.home)
        with closing(connect(root / "tinkex.db")) as source:
            migrate(source)
            with closing(PostgresConnection(url)) as target:
                migrate(target)
                moved = _copied(source, target, held.number, tell)
        home_rows.mark(root, held.home)
        (root / "tinkex.db").rename(root / "tinkex.db.moved")
        (root / _MOVING).unlink()
        return moved
    finally:
        held.give_back()


_MOVING = "database.moving"
"""Names the database that the rows are on their way to."""


def _check(root: Path, held: Lease) -> None:
    if not (root / "tinkex.db").is_file():
        raise NotMoved(f"{root} has no tinkex.db: its rows are elsewhere already, or it has none")
    begun = root / _MOVING
    if not held.is_new and not (begun.is_file() and begun.read_text() == held.home):
        raise NotMoved("the database belongs to another home: create a new one for this home")


def _copied(
    source: SqliteConnection, target: PostgresConnection, number: int, tell: Callable[[str], object]
) -> Moved:
    tables = _tables(source)
    _check_beginnings(tables, source, target)
    rows, digest, batch = 0, hashlib.sha256(), 0
    for table in tables:
        for piece in table.pieces(source, table.newest(target)):
            batch += 1
            target.begin()
            target.execute("SELECT fence(?, ?)", (number, batch))
            table.put(target, piece)
            target.commit()
        count, here = table.hashed(source)
        if (count, here) != table.hashed(target):
            raise _holds_others(table)
        tell(f"{table.name}: {count} rows, sha256 {here[:12]}")
        rows += count
        digest.update(here.encode())
    target.renumber()
    return Moved(rows, digest.hexdigest())


def _check_beginnings(
    tables: Sequence[_Table], source: SqliteConnection, target: PostgresConnection
) -> None:
    """Before anything is written: what is there came from here. Where a move was cut off at its
    first moment, another home may have taken the database since."""
    for table in tables:
        there = table.hashed(target)
        if table.hashed(source, there[0]) != there:
            raise _holds_others(table)


def _holds_others(table: _Table) -> NotMoved:
    return NotMoved(f"the database holds other rows in {table.name}: use an empty one")


def _tables(source: SqliteConnection) -> list[_Table]:
    names = source.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    ).fetchall()
    return [_table(source, name) for (name,) in sorted(names, key=lambda row: str(row[0]))]


def _table(source: SqliteConnection, name: str) -> _Table:
    found = source.execute(f"PRAGMA table_info({name})").fetchall()
    key = sorted((row for row in found if row["pk"]), key=lambda row: int(row["pk"]))
    return _Table(name, tuple(row["name"] for row in found), tuple(str(row["name"]) for row in key))


def _marks(names: Sequence[str]) -> str:
    return ", ".join("?" * len(names))
