"""The `points` table: the newest part of every history, one row per point.

An owner is a run, or the server itself as "". A point gathers until it is `done`: what comes later
starts the next one. `seq_id` is the newest operation in it, so that one that is written down twice
counts once. `data` is JSON text, name to number. Older points lie in `curves`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tinkex.server.storage.database.transactions import Row, Transaction

SERVER = ""


class Point(NamedTuple):
    """One point of a history."""

    n: int  # 1 for the first
    seq_id: int  # of the operation
    step: int  # optimizer steps taken by then
    at: float  # Unix seconds
    done: bool  # False while later operations may still add to it
    values: Mapping[str, float]  # by metric


_COLUMNS = "n, seq_id, step, at, done, data"


def newest(db: Transaction, owner: str, count: int) -> list[Point]:
    """The last points of a history, newest first."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM points WHERE owner = ? ORDER BY n DESC LIMIT ?", (owner, count)
    )
    return [_point(row) for row in rows]


def of_owner(db: Transaction, owner: str) -> list[Point]:
    """All points that lie here, oldest first."""
    rows = db.execute(f"SELECT {_COLUMNS} FROM points WHERE owner = ? ORDER BY n", (owner,))
    return [_point(row) for row in rows]


def has(db: Transaction, owner: str, n: int) -> bool:
    row = db.execute("SELECT 1 FROM points WHERE owner = ? AND n = ?", (owner, n))
    return row.fetchone() is not None


def put(db: Transaction, owner: str, point: Point) -> None:
    """Add a point, or replace the one with its number."""
    data = json.dumps(point.values, separators=(",", ":"))
    db.execute(
        f"""INSERT INTO points (owner, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)
            ON CONFLICT (owner, n) DO UPDATE SET seq_id = excluded.seq_id, step = excluded.step,
            at = excluded.at, done = excluded.done, data = excluded.data""",
        (owner, point.n, point.seq_id, point.step, point.at, point.done, data),
    )


def owners_of_many(db: Transaction, count: int) -> list[str]:
    """Whose points have grown to at least `count`."""
    rows = db.execute("SELECT owner FROM points GROUP BY owner HAVING COUNT(*) >= ?", (count,))
    return [owner for (owner,) in rows]


def delete_through(db: Transaction, owner: str, n: int) -> None:
    db.execute("DELETE FROM points WHERE owner = ? AND n <= ?", (owner, n))


def delete(db: Transaction, owners: Iterable[str]) -> None:
    db.executemany("DELETE FROM points WHERE owner = ?", [(owner,) for owner in owners])


def _point(row: Row) -> Point:
    n, seq_id, step, at, done, data = row
    return Point(n, seq_id, step, at, bool(done), json.loads(data))
