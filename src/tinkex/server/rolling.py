"""Drains and restarts engines while clients go on: rolling restarts.

A drained engine gets no new work. Work under way ends there. Its runs are saved and continue on
other engines, or wait with the reason if there is no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from tinkex.server.engines.engine import Engine
from tinkex.server.engines.pool import Engines
from tinkex.server.refusals import NotFound, Refusal
from tinkex.server.sampling.lanes import Lanes
from tinkex.server.training.scheduler import Scheduler

logger = logging.getLogger(__name__)

_LOOK_S = 0.05


class Rolling:
    """Engines that are restarted wait here for their turn: one at a time, so that the others have
    room for its runs."""

    def __init__(self, engines: Engines, scheduler: Scheduler, lanes: Lanes) -> None:
        self._engines = engines
        self._scheduler = scheduler
        self._lanes = lanes
        self._queue: deque[Engine] = deque()
        self._task: asyncio.Task[None] | None = None

    def find(self, name: str) -> Engine:
        known = {engine.name: engine for engine in self._engines}
        if name not in known:
            raise NotFound(f"no engine {name[:200]!r} here; there are: {', '.join(known)}")
        return known[name]

    def is_waiting(self, engine: Engine) -> bool:
        """Whether it will be restarted."""
        return engine in self._queue

    def is_empty(self, engine: Engine) -> bool:
        """Whether it has no runs and no work under way."""
        residents = engine.is_ready and bool(self._scheduler.residents(engine))
        return not (residents or self._scheduler.in_flight(engine) or self._lanes.sequences(engine))

    def drain(self, engine: Engine) -> None:
        """Empty an engine, to be restarted or not."""
        if self.is_waiting(engine):
            raise Refusal(f"engine {engine.name} is being restarted: it comes back by itself")
        logger.info("engine %s is being drained", engine.name)
        engine.drain(f"engine {engine.name} was drained by its operator")

    def resume(self, engine: Engine) -> None:
        """Let it accept work again."""
        if self.is_waiting(engine):
            raise Refusal(f"engine {engine.name} is being restarted: it comes back by itself")
        logger.info("engine %s takes work again", engine.name)
        engine.resume()

    def restart(self, engines: list[Engine]) -> None:
        """Drain and restart these, one after another."""
        self._queue.extend(engine for engine in engines if engine not in self._queue)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._roll())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _roll(self) -> None:
        while self._queue:
            engine = self._queue[0]
            try:
                await self._restart(engine)
            finally:
                self._queue.popleft()
                engine.resume()

    async def _restart(self, engine: Engine) -> None:
        if engine.is_asleep:
            return  # it will start with what is installed then
        engine.drain(f"engine {engine.name} is being restarted by its operator")
        while engine.is_ready and not self.is_empty(engine):
            await asyncio.sleep(_LOOK_S)
        logger.info("engine %s is empty and is restarted", engine.name)
        engine.renew()
        await engine.ready()
