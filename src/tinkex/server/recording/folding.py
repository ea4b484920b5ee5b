"""Compacts a history: points are folded into blocks, and these into coarser ones, within bounds.

New points are rows of their own. Every `BLOCK` of them become a block with a column per metric.
Beyond `MOST_BLOCKS` the oldest pairs are merged, finer ones first. So a history stops growing, and
yesterday stays finer than last month. Blocks are made by reading threads; the writing thread only
stores them, one at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tinkex.server.recording.blocks import EXACT, Column, array, decode, encode, halved
from tinkex.server.recording.steps import values_of
from tinkex.server.storage.database import curves, points
from tinkex.server.storage.database.curves import Block
from tinkex.server.storage.database.points import Point
from tinkex.server.storage.database.transactions import Transaction

BLOCK = 512
MOST_BLOCKS = 128
_MOST_METRICS = 64


class Fold(NamedTuple):
    """A block that replaces the oldest rows of a history, or two of its `blocks`. It is made by
    reading alone, off the writing thread: what it replaces never changes, it is only deleted with
    its run."""

    owner: str
    block: Block
    columns: Mapping[str, bytes]
    blocks: tuple[Block, ...] = ()

    def write(self, db: Transaction) -> bool:
        """Store it in place of what it replaces, if that still exists."""
        if not self._has_reason(db):
            return False
        if self.blocks:
            curves.remove(db, self.owner, self.blocks)
        else:
            points.delete_through(db, self.owner, self.block.last)
        for metric, data in self.columns.items():
            curves.put(db, self.owner, metric, self.block, data)
        return True

    def _has_reason(self, db: Transaction) -> bool:
        if self.blocks:
            return set(self.blocks) <= set(curves.blocks(db, self.owner, "at"))
        return points.has(db, self.owner, self.block.first)


def crowded(db: Transaction) -> list[str]:
    """Whose histories have grown enough to be folded."""
    return points.owners_of_many(db, 2 * BLOCK)


def next_fold(db: Transaction, owner: str) -> Fold | None:
    """One block's worth of work on a history, or None if there is nothing to do."""
    return _next_merge(db, owner) or _next_block(db, owner)


def _next_block(db: Transaction, owner: str) -> Fold | None:
    rows = points.of_owner(db, owner)
    if len(rows) < 2 * BLOCK:
        return None
    part = rows[:BLOCK]
    columns = _columns(part)
    data = {name: encode(columns[name], 0, name in EXACT) for name in columns}
    return Fold(owner, Block(part[0].n, part[-1].n, 0), data)


def _columns(part: Sequence[Point]) -> dict[str, Column]:
    values = [values_of(point) for point in part]
    often = Counter(name for each in values for name in each).most_common(_MOST_METRICS)
    columns = {name: Column.of(array(each.get(name) for each in values)) for name, _ in often}
    columns["at"] = Column.of(array(point.at for point in part))
    columns["step"] = Column.of(array(point.step for point in part))
    return columns


def _pair(known: Sequence[Block]) -> tuple[Block, Block] | None:
    """The two blocks to merge when there are too many: the oldest of the level with the most."""
    if len(known) <= MOST_BLOCKS:
        return None
    level = max(
        Counter(block.level for block in known).items(), key=lambda each: (each[1], -each[0])
    )[0]
    first, second, *_ = (block for block in known if block.level == level)
    return first, second


def _next_merge(db: Transaction, owner: str) -> Fold | None:
    pair = _pair(curves.blocks(db, owner, "at"))
    if pair is None:
        return None
    first, second = pair
    found: dict[str, dict[int, Column]] = {}
    for metric in curves.metrics(db, owner):
        for block, data in curves.read(db, owner, metric, first.first, second.first):
            found.setdefault(metric, {})[block.first] = decode(data, block.level, metric in EXACT)
    rows = {block.first: len(found["at"][block.first]) for block in pair}
    merged = Block(first.first, second.last, first.level + 1)
    columns = {}
    for metric, known in found.items():
        parts = [known.get(each, Column.missing(rows[each])) for each in rows]
        columns[metric] = encode(halved(Column.join(parts)), merged.level, metric in EXACT)
    return Fold(owner, merged, columns, pair)
