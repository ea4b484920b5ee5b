"""The `curves` table: the older part of histories, in blocks of points, one row per metric.

A block covers the points `first` to `last`. At level 0 it has one value per point; at level L one
per 2^L points, each with the minimum, maximum and mean of what it stands for. Blocks never change;
two neighbours may be replaced by one of the next level. Bytes only: `recording` knows the rest.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Block:
    """Which points a row stands for."""

    first: int
    last: int
    level: int


def blocks(connection: sqlite3.Connection, owner: str, metric: str) -> list[Block]:
    """The blocks in which a metric occurs, oldest first."""
    rows = connection.execute(
        "SELECT first, last, level FROM curves WHERE owner = ? AND metric = ? ORDER BY first",
        (owner, metric),
    )
    return [Block(*row) for row in rows]


def metrics(connection: sqlite3.Connection, owner: str) -> list[str]:
    rows = connection.execute("SELECT DISTINCT metric FROM curves WHERE owner = ?", (owner,))
    return [metric for (metric,) in rows]


def read(
    connection: sqlite3.Connection, owner: str, metric: str, first: int, last: int
) -> list[tuple[Block, bytes]]:
    """A metric's blocks that begin with the points `first` to `last`, oldest first."""
    rows = connection.execute(
        """SELECT first, last, level, data FROM curves
            WHERE owner = ? AND metric = ? AND first BETWEEN ? AND ? ORDER BY first""",
        (owner, metric, first, last),
    )
    return [(Block(*block), data) for *block, data in rows]


def put(connection: sqlite3.Connection, owner: str, metric: str, block: Block, data: bytes) -> None:
    connection.execute(
        "INSERT INTO curves VALUES (?, ?, ?, ?, ?, ?)",
        (owner, metric, block.first, block.last, block.level, data),
    )


def remove(connection: sqlite3.Connection, owner: str, replaced: Sequence[Block]) -> None:
    for block in replaced:
        connection.execute("DELETE FROM curves WHERE owner = ? AND first = ?", (owner, block.first))


def delete(connection: sqlite3.Connection, owners: Iterable[str]) -> None:
    connection.executemany("DELETE FROM curves WHERE owner = ?", [(owner,) for owner in owners])
