"""Decides which tokens are computed next. Works on lengths and pages; never sees a tensor.

Branches are served in order of arrival. One that has pages is active, and every active branch gets
its next token in every step; what is left of the step's tokens goes to prompts, in chunks. A branch
becomes active when pages for all its tokens so far are available. When an active branch needs a
page and there is none, the youngest active branch gives its pages back and starts over later: the
oldest always gets on, so everything ends.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tinkex.engine.sampling.pages import PagePool
from tinkex.engine.sampling.request import Branch


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens [start, stop) of a branch, to be computed in this step. The last may be guesses."""

    branch: Branch
    start: int
    stop: int
    guesses: tuple[int, ...] = ()

    @property
    def known(self) -> int:
        """Where the branch's own tokens end."""
        return self.stop - len(self.guesses)

    @property
    def completes(self) -> bool:
        """Whether the branch can draw its next token after this chunk."""
        return self.known == self.branch.length

    def tokens(self) -> NDArray[np.int32]:
        own = self.branch.tokens(self.start, self.known)
        return np.append(own, np.array(self.guesses, np.int32)) if self.guesses else own


class Scheduler:
    def __init__(self, pool: PagePool, max_rows: int, max_tokens: int) -> None:
        self._pool = pool
        self._max_rows = max_rows
        self._max_tokens = max_tokens
        self.active: list[Branch] = []
        self.waiting: list[Branch] = []
        self.preemptions = 0

    def add(self, branch: Branch) -> None:
        """Queue a branch that holds no pages."""
        insort(self.waiting, branch, key=_order)

    def activate(self, branch: Branch) -> None:
        """Take in a branch that holds the pages of all its computed tokens."""
        insort(self.active, branch, key=_order)

    def remove(self, branch: Branch) -> None:
        """Forget a branch and release its pages."""
        self._release(branch)
        for queue in (self.active, self.waiting):
            if branch in queue:
                queue.remove(branch)

    def plan(self) -> list[Chunk]:
        """The next step's chunks. Their branches hold the pages they need."""
        chunks = self._next_tokens()
        budget = self._max_tokens - len(chunks)
        for branch in self.active if len(chunks) < len(self.active) else ():
            if branch.pending > 1 and budget > 0:
                chunks.append(_chunk(branch, budget))
                budget -= chunks[-1].stop - chunks[-1].start
        while budget > 0 and self.waiting:
            branch = self.waiting[0]
            if not self._admit(branch):
                break
            chunks.append(_chunk(branch, budget))
            budget -= chunks[-1].stop - chunks[-1].start
        return chunks

    def _next_tokens(self) -> list[Chunk]:
        chunks: list[Chunk] = []
        for branch in list(self.active):
            length = branch.length
            if length - branch.computed != 1 or not branch.pages or len(chunks) == self._max_rows:
                continue
            if length <= len(branch.pages) * self._pool.size or self._grow(branch):
                chunks.append(Chunk(branch, branch.computed, length))
        return chunks

    def _grow(self, branch: Branch) -> bool:
        """Give an active branch room for all its tokens, if need be at the youngest's cost."""
        need = self._pool.pages_for(branch.length) - len(branch.pages)
        while need > self._pool.available:
            youngest = self.active[-1]
            self._preempt(youngest)
            if youngest is branch:
                return False
        branch.pages.extend(self._pool.take(need))
        return True

    def _preempt(self, branch: Branch) -> None:
        self.preemptions += 1
        self.active.remove(branch)
        self._release(branch)
        self.add(branch)

    def _admit(self, branch: Branch) -> bool:
        """Activate the branch if pages for all its tokens are there, reusing what can be found."""
        if len(self.active) >= self._max_rows:
            return False
        found = self._reusable(branch)
        need = self._pool.pages_for(branch.length) - len(found)
        # Each active branch may need a page any moment; admitting into those would only thrash.
        reserve = self._pool.idle_among(found) + len(self.active)
        if need + reserve > self._pool.available:
            return False
        self._pool.hold(found)
        branch.pages = found + self._pool.take(need)
        branch.computed = len(found) * self._pool.size
        if branch.request.cached_tokens is None:
            branch.request.cached_tokens = branch.computed
        self.waiting.remove(branch)
        self.activate(branch)
        return True

    def _reusable(self, branch: Branch) -> list[int]:
        """Found pages, short of the last token and of the first row whose logits are needed."""
        branch.keys.extend(branch.tokens(0, branch.length))
        limit = branch.length - 1
        if not branch.started:
            limit = min(limit, branch.request.scores.rows.start)
        return self._pool.find(branch.keys.keys[: limit // self._pool.size])

    def _release(self, branch: Branch) -> None:
        self._pool.release(branch.pages)
        branch.pages = []
        branch.computed = 0


def _chunk(branch: Branch, budget: int) -> Chunk:
    return Chunk(branch, branch.computed, min(branch.length, branch.computed + budget))


def _order(branch: Branch) -> tuple[int, int]:
    return branch.order
