"""Continuous batching: decides which tokens are computed next, fairly between lanes.

Works on lengths and pages; never sees a tensor. A branch that has pages is active, and every active
branch gets its next token in every step. If there are more of them than the step has rows, lanes
that want rows get equal numbers of them. The rest of the step's tokens goes to prompts, in chunks,
first to the lane that had least. Within a lane the older branch goes first.

A branch becomes active when pages for all its tokens so far are available. A branch with less than
its lane's share of rows and pages does not wait for a lane with more than its share: that lane's
youngest branch is preempted, which means that it gives its pages back and starts over later. The
same happens when an active branch needs a page and there is none. The oldest branch of all takes
what it needs and is never preempted, so every branch ends.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Iterable

from tinkex.engine.sampling.cache.pages import PagePool
from tinkex.engine.sampling.request import Branch
from tinkex.engine.sampling.scheduling.chunks import Chunk
from tinkex.engine.sampling.scheduling.preemption import (
    give_way_to,
    gives_way,
    holds_most_rows,
    pages_by_lane,
)
from tinkex.engine.sampling.scheduling.shares import Pacing, Shares


class Scheduler:
    """`places` bounds the active branches if each needs more than pages. Otherwise lanes with less
    than their share of the rows may have branches besides those of lanes with more."""

    def __init__(
        self, pool: PagePool, max_rows: int, max_tokens: int, places: int | None = None
    ) -> None:
        self._pool = pool
        self._places = places
        self._max_rows = max_rows
        self._max_tokens = max_tokens
        self._shares = Shares()
        self.pacing = Pacing()
        self.active: list[Branch] = []
        self.waiting: list[Branch] = []
        self.preemptions = 0

    def add(self, branch: Branch) -> None:
        """Queue a branch that holds no pages."""
        insort(self.waiting, branch, key=_order)

    def activate(self, branch: Branch) -> None:
        """Add a branch that holds the pages of all its computed tokens."""
        insort(self.active, branch, key=_order)

    def remove(self, branch: Branch) -> None:
        """Forget a branch and release its pages."""
        self._release(branch)
        for queue in (self.active, self.waiting):
            if branch in queue:
                queue.remove(branch)

    def plan(self) -> list[Chunk]:
        """The next step's chunks. Their branches hold the pages they need."""
        drawing = self._next_tokens()
        lanes = {chunk.branch.lane for chunk in drawing}
        prompts = self._prompts(self._max_tokens - len(drawing), lanes)
        work: Counter[str] = Counter()
        for chunk in prompts:
            work[chunk.branch.lane] += chunk.stop - chunk.start
        self.pacing.planned(work, lanes)
        # Pages of some may have been taken back for those planned after them.
        return [chunk for chunk in drawing + prompts if chunk.branch.pages]

    # ---- next tokens

    def _next_tokens(self) -> list[Chunk]:
        chunks: list[Chunk] = []
        ready = [branch for branch in self.active if branch.pending == 1]
        for branch in ready if len(ready) <= self._max_rows else _in_turns(ready, self._max_rows):
            length = branch.length
            # An earlier one of these may have had this one's pages taken back.
            if branch.pages and (
                length <= len(branch.pages) * self._pool.size or self._grow(branch)
            ):
                chunks.append(Chunk(branch, branch.computed, length))
        return chunks

    def _grow(self, branch: Branch) -> bool:
        """Give an active branch pages for all its tokens, preempting others if need be."""
        need = self._pool.pages_for(branch.length) - len(branch.pages)
        while need > self._pool.available:
            victim = gives_way(self.active, self._oldest(), branch, need)
            self._preempt(victim)
            if victim is branch:
                return False
        branch.pages.extend(self._pool.take(need))
        return True

    # ---- prompts

    def _prompts(self, budget: int, drawing: set[str]) -> list[Chunk]:
        """Chunks of branches with more than one token to compute, as far as the budget goes."""
        queues: dict[str, deque[Branch]] = {}
        for branch in self.active:
            if branch.pending > 1:
                queues.setdefault(branch.lane, deque()).append(branch)
        for branch in self.waiting:
            queues.setdefault(branch.lane, deque()).append(branch)
        self._shares.waiting(queues)
        chunks: list[Chunk] = []
        for lane in [lane for lane in queues if self.pacing.holds_up(lane, drawing)]:
            del queues[lane]
        while budget > 0 and queues:
            lane = self._shares.first(queues)
            branch = queues[lane].popleft()
            if not branch.pages and not self._admit(branch):
                del queues[lane]
                continue
            if not queues[lane]:
                del queues[lane]
            chunks.append(_chunk(branch, budget))
            cost = (chunks[-1].stop - branch.computed) * branch.request.scores.row_cost
            budget -= cost
            self._shares.charge(lane, cost)
        return chunks

    def _admit(self, branch: Branch) -> bool:
        """Activate the branch if pages for all its tokens are there, reusing cached ones."""
        full = len(self.active) >= self._max_rows
        if full and not self._entitled_to_row(branch):
            return False
        found = self._reusable(branch)
        need = self._pool.pages_for(branch.length) - len(found)
        # Each active branch may need a page at any moment; taking those would only thrash.
        reserve = self._pool.idle_among(found) + len(self.active)
        if need + reserve > self._pool.available and not self._reclaim(branch, found, need):
            return False
        if self._places is not None and len(self.active) >= self._places:
            self._preempt(holds_most_rows(self.active, self._oldest(), branch.lane))
        self._pool.hold(found)
        branch.pages = found + self._pool.take(need)
        branch.computed = len(found) * self._pool.size
        if branch.request.cached_tokens is None:
            branch.request.cached_tokens = branch.computed
        self.waiting.remove(branch)
        self.activate(branch)
        return True

    def _reusable(self, branch: Branch) -> list[int]:
        """Cached pages, without the last token and the first row whose logits are needed."""
        branch.keys.extend(branch.tokens(0, branch.length))
        limit = branch.length - 1
        if not branch.started:
            limit = min(limit, branch.request.scores.rows.start)
        return self._pool.find(branch.keys.keys[: limit // self._pool.size])

    # ---- parts of rows and pages

    def _lanes(self) -> int:
        return len({branch.lane for branch in (*self.active, *self.waiting)})

    def _entitled_to_row(self, branch: Branch) -> bool:
        """Whether the branch's lane has less than its share of the rows."""
        lanes = self._lanes()
        mine = sum(other.lane == branch.lane for other in self.active)
        return lanes > 1 and mine < max(1, self._max_rows // lanes)

    def _reclaim(self, branch: Branch, found: list[int], need: int) -> bool:
        """Preempt others for a branch whose lane has less than its share, or that is the oldest."""
        lanes, oldest = self._lanes(), self._oldest()
        if lanes == 1:
            return False
        part = self._pool.total // lanes
        mine = pages_by_lane(self.active).get(branch.lane, set()).union(found)
        if branch is not oldest and len(mine) + need > part:
            return False
        short = need + self._pool.idle_among(found) - self._pool.available
        victims = give_way_to(branch, found, short, self.active, oldest, part, self._pool)
        for victim in victims:
            self._preempt(victim)
        return bool(victims) or short <= 0

    def _oldest(self) -> Branch:
        return min((queue[0] for queue in (self.active, self.waiting) if queue), key=_order)

    def _preempt(self, branch: Branch) -> None:
        self.preemptions += 1
        self.active.remove(branch)
        self._release(branch)
        self.add(branch)

    def _release(self, branch: Branch) -> None:
        self._pool.release(branch.pages)
        branch.pages = []
        branch.computed = 0


def _chunk(branch: Branch, budget: int) -> Chunk:
    tokens = max(1, budget // branch.request.scores.row_cost)
    return Chunk(branch, branch.computed, min(branch.length, branch.computed + tokens))


def _in_turns(branches: Iterable[Branch], count: int) -> list[Branch]:
    """So many of these: each lane's oldest, then each lane's next, and so on."""
    seen: Counter[str] = Counter()
    places = []
    for branch in branches:
        places.append((seen[branch.lane], branch))
        seen[branch.lane] += 1
    places.sort(key=lambda place: place[0])
    return [branch for _, branch in places[:count]]


def _order(branch: Branch) -> tuple[int, int]:
    return branch.order
