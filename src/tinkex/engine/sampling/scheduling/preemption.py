"""Preemption: which branch gives pages back when there are too few, fairly between lanes.

Every lane is entitled to an equal share of the pages. A lane with more gives way to one with less;
within a lane the youngest branch gives way. The oldest branch of all never does. Only chooses; the
scheduler acts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from tinkex.engine.sampling.cache.pages import PagePool
from tinkex.engine.sampling.request import Branch


def gives_way(active: Sequence[Branch], oldest: Branch, growing: Branch, need: int) -> Branch:
    """The branch to preempt when an active branch needs so many more pages. May be that branch
    itself."""
    may = [branch for branch in active if branch is not oldest] or active
    if all(branch.lane == growing.lane for branch in may):
        return may[-1]
    held = {lane: len(pages) for lane, pages in pages_by_lane(active).items()}
    held[growing.lane] += need
    return max(may, key=lambda branch: (held[branch.lane], branch.lane, branch.order))


def give_way_to(
    branch: Branch,
    found: Collection[int],
    short: int,
    active: Sequence[Branch],
    oldest: Branch,
    part: int,
    pool: PagePool,
) -> list[Branch]:
    """The branches to preempt so that `short` more pages become free for a branch that waits. Only
    from lanes with more than their `part`; for the oldest branch of all, from any. Empty if that is
    not enough. `found` are pages that the branch will hold, so they become free for nobody."""
    least = 0 if branch is oldest else part
    victims: list[Branch] = []
    while _freed(victims, found, pool) < short:
        left = [other for other in active if other not in victims and other.lane != branch.lane]
        held = pages_by_lane(left)
        may = [other for other in left if other is not oldest and len(held[other.lane]) > least]
        if not may:
            return []
        victims.append(max(may, key=lambda other: (len(held[other.lane]), other.lane, other.order)))
    return victims


def holds_most_rows(active: Sequence[Branch], oldest: Branch, lane: str) -> Branch:
    """The branch to preempt for one of `lane` when all places for branches are taken."""
    rows = Counter(branch.lane for branch in active)
    others = [branch for branch in active if branch.lane != lane]
    may = [branch for branch in others if branch is not oldest] or others
    return max(may, key=lambda branch: (rows[branch.lane], branch.lane, branch.order))


def pages_by_lane(branches: Sequence[Branch]) -> dict[str, set[int]]:
    """The number of pages each lane holds; pages that its branches share count once."""
    held: dict[str, set[int]] = {}
    for branch in branches:
        held.setdefault(branch.lane, set()).update(branch.pages)
    return held


def _freed(victims: Sequence[Branch], kept: Collection[int], pool: PagePool) -> int:
    """How many pages would be free without these branches."""
    holds = Counter(page for victim in victims for page in victim.pages)
    return sum(page not in kept and count == pool.holders(page) for page, count in holds.items())
