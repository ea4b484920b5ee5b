"""The `snapshots` table: for each run the folders from which it can be rebuilt.

That is the newest one, and the one before it for the case that the newest is damaged.
"""

from __future__ import annotations

from typing import NamedTuple

from tinkex.server.storage.database.transactions import Transaction


class SnapshotRow(NamedTuple):
    """A run's state at one point of its log."""

    model_id: str  # of the run
    seq_id: int  # the last operation it holds
    folder: str  # state after every operation up to that one
    step: int  # optimizer steps taken by then
    size_bytes: int  # of the folder
    created_at: float  # Unix seconds
    digest: str  # names its manifest; empty for one made before there were any


def put(db: Transaction, row: SnapshotRow, before: SnapshotRow | None) -> list[str]:
    """Make `row` its run's newest, with `before` to fall back to; the folders of all others."""
    kept = (row.seq_id, row.seq_id if before is None else before.seq_id)
    others = "model_id = ? AND (seq_id NOT IN (?, ?) OR seq_id = ?)"
    values = (row.model_id, *kept, row.seq_id)
    gone = db.execute(f"SELECT folder FROM snapshots WHERE {others}", values).fetchall()
    db.execute(f"DELETE FROM snapshots WHERE {others}", values)
    db.execute(
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


def of_run(db: Transaction, model_id: str) -> list[SnapshotRow]:
    """A run's snapshots, the newest first."""
    rows = db.execute(
        "SELECT * FROM snapshots WHERE model_id = ? ORDER BY seq_id DESC", (model_id,)
    )
    return [SnapshotRow(**dict(row)) for row in rows]


def every(db: Transaction) -> list[SnapshotRow]:
    return [SnapshotRow(**dict(row)) for row in db.execute("SELECT * FROM snapshots")]


def delete(db: Transaction, model_id: str) -> None:
    """Forget all of a run that is over."""
    db.execute("DELETE FROM snapshots WHERE model_id = ?", (model_id,))


def folders(db: Transaction) -> set[str]:
    return {folder for (folder,) in db.execute("SELECT folder FROM snapshots")}


def size_bytes(db: Transaction) -> int:
    return int(db.execute("SELECT COALESCE(SUM(size_bytes), 0) FROM snapshots").fetchone()[0])
