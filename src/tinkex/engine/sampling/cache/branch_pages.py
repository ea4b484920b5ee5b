"""The pages of a branch's tokens: computed pages enter the prefix cache, forks share a prompt's.

Knows branches, pages and states; nothing of draws or results.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from tinkex.engine.sampling.cache.kv_cache import PAGE_SIZE, KeyValueCache
from tinkex.engine.sampling.cache.pages import PagePool
from tinkex.engine.sampling.cache.recurrent_states import SequenceStates
from tinkex.engine.sampling.cache.state_pages import StatefulPagePool
from tinkex.engine.sampling.request import Branch
from tinkex.engine.sampling.scheduling.chunks import Chunk, kept_length, opened_pages
from tinkex.engine.sampling.scheduling.scheduler import Scheduler

logger = logging.getLogger(__name__)


class BranchPages:
    def __init__(
        self,
        pool: PagePool,
        cache: KeyValueCache,
        states: SequenceStates | None,
        scheduler: Scheduler,
    ) -> None:
        self._pool, self._cache, self._states = pool, cache, states
        self._scheduler = scheduler
        self.prompt_tokens = 0
        self.imbalances = 0

    def begin(self, chunks: Sequence[Chunk]) -> None:
        """Have nothing in the pages of these chunks that others left there."""
        self._cache.clear(opened_pages(chunks))

    def keep_routes(self, branch: Branch) -> None:
        """If asked for, keep the routes of an ended branch's tokens while its pages are there."""
        if branch.request.command.routes and self._cache.routes is not None:
            known = min(branch.computed, branch.length - 1)
            branch.routes = self._cache.routes.read(branch.pages, known)

    def computed(self, branch: Branch, length: int) -> None:
        """Note that its first `length` tokens are in the cache; its full pages enter the prefix
        cache."""
        if not branch.started:
            self.prompt_tokens += length - branch.computed
        if self._states is not None:
            self._states.confirm(branch, length)
        before, branch.computed = branch.computed // PAGE_SIZE, length
        full = length // PAGE_SIZE
        if full > before:
            branch.keys.extend(branch.tokens(0, full * PAGE_SIZE))
            for page in range(before, full):
                self._pool.file(branch.pages[page], branch.keys.keys[page])
        if isinstance(self._pool, StatefulPagePool) and length == kept_length(branch):
            self._pool.keep(branch, branch.keys.keys[full - 1])

    def place_forks(self, branches: Iterable[Branch]) -> None:
        """Give samples that just began the pages of their prompt."""
        for branch in branches:
            if branch.index and not branch.pages and branch.reason is None:
                self._fork(branch.request.branches[0], branch)

    def _fork(self, source: Branch, branch: Branch) -> None:
        """Share full pages, copy the last one. Without room the branch queues and starts over."""
        full = source.computed // PAGE_SIZE
        partial = source.pages[full : self._pool.pages_for(source.computed)]
        room = len(partial) <= self._pool.available
        if not room or (self._states is not None and not self._states.fork(source, branch)):
            self._scheduler.add(branch)
            return
        self._pool.hold(source.pages[:full])
        copies = self._pool.take(len(partial))
        for old, new in zip(partial, copies, strict=True):
            self._cache.copy_page(old, new)
        branch.pages = source.pages[:full] + copies
        branch.computed = source.computed
        self._scheduler.activate(branch)

    def room_ahead(self, branches: Sequence[Branch]) -> bool:
        """Whether the step after the next can start now: no branch waits, none is certain to end,
        and there are pages for all. The pages are taken here."""
        if self._scheduler.waiting or len(branches) != len(self._scheduler.active):
            return False
        if any(len(b.generated) + 1 >= b.request.stopping.max_tokens for b in branches):
            return False
        short = [branch for branch in branches if branch.length >= len(branch.pages) * PAGE_SIZE]
        if len(short) > self._pool.available:
            return False
        for branch in short:
            branch.pages.extend(self._pool.take(1))
        return True

    def check_idle(self) -> None:
        """With nothing under way every page must be free; if not, log an error and reset."""
        try:
            self._pool.check_idle()
        except RuntimeError:
            logger.exception("the page accounts are wrong; the cache starts anew")
            self.imbalances += 1
            self._pool.reset()
