"""The `snapshots` table: for each run the newest folder from which it can be rebuilt."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """`folder` holds the run's state after every operation up to and including `seq_id`."""

    model_id: str
    seq_id: int
    folder: str
    step: int
    size_bytes: int
    created_at: float


def put(connection: sqlite3.Connection, row: SnapshotRow) -> None:
    """Make `row` its run's snapshot in place of the one before."""
    connection.execute(
        """INSERT OR REPLACE INTO snapshots
            (model_id, seq_id, folder, step, size_bytes, created_at)
            VALUES (?, ?, ?, ?, ?, ?)""",
        (row.model_id, row.seq_id, row.folder, row.step, row.size_bytes, row.created_at),
    )


def get(connection: sqlite3.Connection, model_id: str) -> SnapshotRow | None:
    row = connection.execute("SELECT * FROM snapshots WHERE model_id = ?", (model_id,)).fetchone()
    return None if row is None else SnapshotRow(**dict(row))


def delete(connection: sqlite3.Connection, model_id: str) -> None:
    connection.execute("DELETE FROM snapshots WHERE model_id = ?", (model_id,))


def folders(connection: sqlite3.Connection) -> set[str]:
    return {folder for (folder,) in connection.execute("SELECT folder FROM snapshots")}
