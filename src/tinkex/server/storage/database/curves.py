"""The `curves` table: the older part of histories, in blocks of points, one row per metric.

A block covers the points `first` to `last`. At level 0 it has one value per point; at level L one
per 2^L points, each with the minimum, maximum and mean of what it stands for. Blocks never change;
two neighbours may be replaced by one of the next level. Bytes only: `recording` knows the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tinkex.server.storage.database.transactions import Transaction


@dataclass(frozen=True, slots=True, order=True)
class Block:
    """Which points a row stands for."""

    first: int
    last: int
    level: int


def blocks(db: Transaction, owner: str, metric: str) -> list[Block]:
    """The blocks in which a metric occurs, oldest first."""
    rows = db.execute(
        "SELECT first, last, level FROM curves WHERE owner = ? AND metric = ? ORDER BY first",
        (owner, metric),
    )
    return [Block(*row) for row in rows]


def metrics(db: Transaction, owner: str) -> list[str]:
    rows = db.execute("SELECT DISTINCT metric FROM curves WHERE owner = ?", (owner,))
    return [metric for (metric,) in rows]


def read(
    db: Transaction, owner: str, metric: str, first: int, last: int
) -> list[tuple[Block, bytes]]:
    """A metric's blocks that begin with the points `first` to `last`, oldest first."""
    rows = db.execute(
        """SELECT first, last, level, data FROM curves
            WHERE owner = ? AND metric = ? AND first BETWEEN ? AND ? ORDER BY first""",
        (owner, metric, first, last),
    )
    return [(Block(*block), data) for *block, data in rows]


def put(db: Transaction, owner: str, metric: str, block: Block, data: bytes) -> None:
    db.execute(
        "INSERT INTO curves VALUES (?, ?, ?, ?, ?, ?)",
        (owner, metric, block.first, block.last, block.level, data),
    )


def remove(db: Transaction, owner: str, replaced: Sequence[Block]) -> None:
    for block in replaced:
        db.execute("DELETE FROM curves WHERE owner = ? AND first = ?", (owner, block.first))


def delete(db: Transaction, owners: Iterable[str]) -> None:
    db.executemany("DELETE FROM curves WHERE owner = ?", [(owner,) for owner in owners])
