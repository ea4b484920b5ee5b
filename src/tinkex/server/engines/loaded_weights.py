"""Which weights an engine has loaded for sampling: brought in when needed, dropped when not.

Kept per life of the engine; the least recently used go when there are too many, never while a
sample uses them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tinkex.engine.messages import DropWeights, LoadWeights
from tinkex.server.engines.engine import Engine

BASE = ""


@dataclass(slots=True)
class _Loaded:
    loading: asyncio.Task[None]
    users: int = 0


class LoadedWeights:
    """The weights in one engine's memory beside the base model's."""

    def __init__(self, engine: Engine, limit: int) -> None:
        self._engine = engine
        self._limit = limit
        self._life = 0
        self._loaded: dict[str, _Loaded] = {}
        self._ops = itertools.count()

    def __len__(self) -> int:
        return len(self._loaded)

    @asynccontextmanager
    async def use(self, weights: str, folder: Path | None) -> AsyncIterator[None]:
        """Hold weights in the engine for the length of a `with`; raises what loading raises."""
        if folder is None:
            yield
            return
        loaded = self._take(weights, folder)
        loaded.users += 1
        try:
            await asyncio.shield(loaded.loading)
            yield
        finally:
            loaded.users -= 1
            if loaded.loading.done() and _failed(loaded.loading):
                self._forget(weights, loaded)

    def _take(self, weights: str, folder: Path) -> _Loaded:
        if self._life != self._engine.life:
            self._life = self._engine.life
            self._loaded = {}
        loaded = self._loaded.pop(weights, None)
        if loaded is None:
            self._make_room()
            op = f"weights:{next(self._ops)}"
            submit = self._engine.submit(LoadWeights(op, weights, str(folder)))
            loaded = _Loaded(asyncio.get_running_loop().create_task(_only(submit)))
        self._loaded[weights] = loaded
        return loaded

    def _make_room(self) -> None:
        unused = [name for name, loaded in self._loaded.items() if loaded.users == 0]
        for name in unused[: max(0, len(self._loaded) - self._limit + 1)]:
            del self._loaded[name]
            drop = self._engine.submit(DropWeights(f"weights:{next(self._ops)}", name))
            self._dropping(asyncio.get_running_loop().create_task(_only(drop)))

    def _dropping(self, task: asyncio.Task[None]) -> None:
        """A drop that fails needs no answer: the engine is gone, and the weights with it."""
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _forget(self, weights: str, loaded: _Loaded) -> None:
        if self._loaded.get(weights) is loaded:
            del self._loaded[weights]


async def _only(submit: object) -> None:
    await submit  # type: ignore[misc]


def _failed(task: asyncio.Task[None]) -> bool:
    return task.cancelled() or task.exception() is not None
