"""Weights that are sampled from before their files are on disk: which life of an engine has them.

A run's weights are handed to sampling inside the engine and written down behind that. If the engine
dies between, the operation that saves them is still in the log: it is repeated, and whoever samples
from them waits for that. `over` ends it, with the files there or given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tinkex.server.engines.engine import Engine

_NOWHERE = 0


class UnwrittenWeights:
    """By the name of the folder that is to come."""

    def __init__(self) -> None:
        self._lives: dict[str, int] = {}
        self._unwritable: set[str] = set()
        self._takers: dict[str, Callable[[str], None]] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._lives)

    def __contains__(self, name: str) -> bool:
        return name in self._lives

    def expect(self, name: str) -> None:
        """They will be made again by an operation that waits in the log."""
        self._set(name, _NOWHERE)

    def listen(self, engine: Engine, taker: Callable[[str], None]) -> None:
        """Tell `taker` of all weights that a run hands over in this engine's memory."""
        self._takers[engine.spec.name] = taker

    def served(self, name: str, engine: Engine) -> None:
        """This life of the engine has them in memory."""
        self._set(name, engine.life)
        if engine.spec.name in self._takers:
            self._takers[engine.spec.name](name)

    def unwritable(self, name: str) -> None:
        """Their files will never come: they last as long as the engine that has them."""
        self._unwritable.add(name)

    def over(self, name: str) -> None:
        """Their files are there, or nothing will bring them back."""
        self._lives.pop(name, None)
        self._unwritable.discard(name)
        self._tell()

    def lacks(self, name: str, engine: Engine) -> bool:
        """Whether they are still to be made again in this life of the engine."""
        return self._lives.get(name, engine.life) != engine.life

    async def usable(self, name: str, engine: Engine) -> None:
        """Wait until this engine has them, or what their folder says is all there is to say."""
        while self.lacks(name, engine):
            if name in self._unwritable:
                self.over(name)
                return
            await self._changed.wait()

    def _set(self, name: str, life: int) -> None:
        self._lives[name] = life
        self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
