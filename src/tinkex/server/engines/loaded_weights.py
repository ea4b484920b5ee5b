"""Which weights an engine has loaded for sampling: loaded when needed, dropped when not.

Kept per life of the engine. When there are too many, the least recently used are dropped, never
while a sample uses them or while their files are still to be written.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

from tinkex.engine.messages import DropWeights, LoadWeights, WeightsRef
from tinkex.server.engines.engine import CommandFailed, Engine, RunLost
from tinkex.server.engines.unwritten_weights import UnwrittenWeights

logger = logging.getLogger(__name__)

BASE = ""

Find: TypeAlias = Callable[[bool], Awaitable[WeightsRef]]
"""Finds weights when an engine needs them: by links alone if that is allowed and possible,
otherwise by bringing them to this disk."""

_PAUSE_S = 1.0
"""Seconds before weights that an engine could not reach are tried again."""

_TRIES = 60
"""Attempts before the waiting samples are told."""


@dataclass(slots=True)
class _Loaded:
    """Weights that are loaded or on their way, and how many samples use them."""

    loading: asyncio.Future[None]
    users: int = 0


class LoadedWeights:
    """The weights in one engine's memory, besides the base model's."""

    def __init__(self, engine: Engine, limit: int, unwritten: UnwrittenWeights) -> None:
        self._engine = engine
        self._limit = limit
        self._unwritten = unwritten
        unwritten.listen(engine, self._adopt)
        self._life = 0
        self._loaded: dict[str, _Loaded] = {}
        self._ops = itertools.count()

    def __len__(self) -> int:
        return len(self._loaded)

    def __contains__(self, weights: str) -> bool:
        """Whether they are loaded or being loaded. The base model's always are."""
        return weights == BASE or (self._life == self._engine.life and weights in self._loaded)

    def holds(self, weights: str) -> bool:
        """Whether they are loaded, not only being loaded."""
        found = self._loaded.get(weights) if weights in self else None
        return found is not None and found.loading.done() and not _failed(found.loading)

    def names(self) -> list[str]:
        return list(self._loaded)

    @asynccontextmanager
    async def use(self, weights: str, find: Find | None) -> AsyncIterator[None]:
        """Hold weights in the engine for the length of a `with`; raises what loading raises."""
        if find is None:
            yield
            return
        loaded = self._take(weights, find)
        loaded.users += 1
        try:
            await asyncio.shield(loaded.loading)
            yield
        finally:
            loaded.users -= 1
            if loaded.loading.done() and _failed(loaded.loading):
                self._forget(weights, loaded)

    def _adopt(self, weights: str) -> None:
        """Note weights that the engine has already: a run in its memory handed them over."""
        self._look_at_life()
        self._make_room()
        loading: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        loading.set_result(None)
        self._loaded[weights] = _Loaded(loading)

    def _look_at_life(self) -> None:
        if self._life != self._engine.life:
            self._life = self._engine.life
            self._loaded = {}

    def _take(self, weights: str, find: Find) -> _Loaded:
        self._look_at_life()
        loaded = self._loaded.pop(weights, None)
        if loaded is None:
            self._make_room()
            load = self._load(f"weights:{next(self._ops)}", weights, find)
            loaded = _Loaded(asyncio.get_running_loop().create_task(load))
        self._loaded[weights] = loaded
        return loaded

    async def _load(self, op: str, weights: str, find: Find) -> None:
        """An engine elsewhere fetches them from where they are stored; if it cannot, through the
        server."""
        source = await find(self._engine.is_away)
        for tried in range(1, _TRIES + 1):
            try:
                await self._engine.submit(LoadWeights(op, weights, source))
                return
            except RunLost as error:
                logger.warning("%s could not get weights: %s", self._engine.name, error)
                if tried == _TRIES:
                    told = f"{self._engine.name} could not get the weights of this sampler: {error}"
                    raise CommandFailed("server", told) from error
                await asyncio.sleep(_PAUSE_S)
                source = replace(await find(False), files=())

    def _make_room(self) -> None:
        unused = [
            name
            for name, loaded in self._loaded.items()
            if loaded.users == 0 and name not in self._unwritten
        ]
        for name in unused[: max(0, len(self._loaded) - self._limit + 1)]:
            del self._loaded[name]
            drop = self._engine.submit(DropWeights(f"weights:{next(self._ops)}", name))
            self._dropping(asyncio.get_running_loop().create_task(_only(drop)))

    def _dropping(self, task: asyncio.Task[None]) -> None:
        """Drop weights. A failure needs no answer: the engine is gone, and the weights with it."""
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _forget(self, weights: str, loaded: _Loaded) -> None:
        if self._loaded.get(weights) is loaded:
            del self._loaded[weights]


async def _only(submit: Awaitable[object]) -> None:
    await submit


def _failed(loading: asyncio.Future[None]) -> bool:
    return loading.cancelled() or loading.exception() is not None
