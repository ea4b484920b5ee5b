"""The `snapshots` table: for each run the folders from which it can be rebuilt.

That is the newest one, and the one before it for the case that the newest is damaged.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """`folder` holds the run's state after every operation up to and including `seq_id`.

    `digest` names its manifest; it is empty for one made before there were any.
    """

    model_id: str
    seq_id: int
    folder: str
    step: int
    size_bytes: int
    created_at: float
    digest: str


def put(connection: sqlite3.Connection, row: SnapshotRow, before: SnapshotRow | None) -> list[str]:
    """Make `row` its run's newest, with `before` to fall back to; the folders of all others."""
    kept = (row.seq_id, row.seq_id if before is None else before.seq_id)
    others = "model_id = ? AND (seq_id NOT IN (?, ?) OR seq_id = ?)"
    values = (row.model_id, *kept, row.seq_id)
    gone = connection.execute(f"SELECT folder FROM snapshots WHERE {others}", values).fetchall()
    connection.execute(f"DELETE FROM snapshots WHERE {others}", values)
    connection.execute(
        """INSERT INTO snapshots (model_id, seq_id, folder, step, size_bytes, created_at, digest)
            VALUES (?, ?, ?, ?, ?, ?, ?)""",
        (
            row.model_id,
            row.seq_id,
            row.folder,
            row.step,
            row.size_bytes,
            row.created_at,
            row.digest,
        ),
    )
    return [folder for (folder,) in gone]


def of_run(connection: sqlite3.Connection, model_id: str) -> list[SnapshotRow]:
    """A run's snapshots, the newest first."""
    rows = connection.execute(
        "SELECT * FROM snapshots WHERE model_id = ? ORDER BY seq_id DESC", (model_id,)
    )
    return [SnapshotRow(**dict(row)) for row in rows]


def every(connection: sqlite3.Connection) -> list[SnapshotRow]:
    return [SnapshotRow(**dict(row)) for row in connection.execute("SELECT * FROM snapshots")]


def delete(connection: sqlite3.Connection, model_id: str) -> None:
    """Forget all of a run that is over."""
    connection.execute("DELETE FROM snapshots WHERE model_id = ?", (model_id,))


def folders(connection: sqlite3.Connection) -> set[str]:
    return {folder for (folder,) in connection.execute("SELECT folder FROM snapshots")}


def size_bytes(connection: sqlite3.Connection) -> int:
    return int(
        connection.execute("SELECT COALESCE(SUM(size_bytes), 0) FROM snapshots").fetchone()[0]
    )
