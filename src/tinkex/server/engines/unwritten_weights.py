"""Weights that are sampled from before their files are on disk: which engine's memory has them.

A run's weights are handed to sampling inside its engine and written to disk after that. Until then
no other engine can have them. If the engine dies in between, the operation that saves them is still
in the log: it is repeated, there or on another engine, and samples wait for that. `over` ends the
entry, with the files written or given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tinkex.server.engines.engine import Engine
from tinkex.server.engines.pool import Pool
from tinkex.server.engines.residence import Residence


class UnwrittenWeights:
    """Weights by the name of the folder that will hold them."""

    def __init__(self) -> None:
        self._homes: dict[str, Residence | None] = {}
        self._unwritable: set[str] = set()
        self._takers: dict[str, Callable[[str], None]] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._homes)

    def __contains__(self, name: str) -> bool:
        return name in self._homes

    def expect(self, name: str) -> None:
        """They will be made again by an operation that waits in the log."""
        self._set(name, None)

    def listen(self, engine: Engine, taker: Callable[[str], None]) -> None:
        """Tell `taker` about all weights that a run hands over in this engine's memory."""
        self._takers[engine.name] = taker

    def served(self, name: str, engine: Engine) -> None:
        """This life of the engine has them in memory."""
        self._set(name, engine.residence)
        if engine.name in self._takers:
            self._takers[engine.name](name)

    def unwritable(self, name: str) -> None:
        """Their files will never be written: they last as long as the engine that has them."""
        self._unwritable.add(name)

    def over(self, name: str) -> None:
        """Their files are written, or nothing will bring them back."""
        self._homes.pop(name, None)
        self._unwritable.discard(name)
        self._tell()

    def lacks(self, name: str, pool: Pool) -> bool:
        """Whether they are still to be made again: they are in no memory and on no disk."""
        return name in self._homes and pool.at(self._homes[name]) is None

    def holder(self, name: str, pool: Pool) -> Engine | None:
        """The only engine that can serve them now; None if any can, or none yet."""
        return pool.at(self._homes.get(name))

    async def usable(self, name: str, pool: Pool) -> None:
        """Wait until an engine has them, or until only their folder can say what they are."""
        while self.lacks(name, pool):
            if name in self._unwritable:
                self.over(name)
                return
            await self._changed.wait()

    def _set(self, name: str, home: Residence | None) -> None:
        self._homes[name] = home
        self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
