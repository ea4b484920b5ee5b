"""Autoscaling: starts engines when queues need them and stops them when they are idle.

All engines that a model may have are known from the start; those it does not need are asleep. An
engine is drained before it is stopped: its runs are saved and continue elsewhere, its samples end.
An engine that waits for room on a Ray cluster blocks nobody: the others serve.
"""

from __future__ import annotations

import asyncio
import logging

from tinkex.server.clock import Clock
from tinkex.server.engines.engine import Engine
from tinkex.server.engines.pool import Engines, Pool
from tinkex.server.engines.scaling import Policy, Work
from tinkex.server.rolling import Rolling
from tinkex.server.sampling.lanes import Lanes
from tinkex.server.settings import Settings
from tinkex.server.training.scheduler import Scheduler

logger = logging.getLogger(__name__)

LOOK_S = 1.0


class Autoscaling:
    """Scales all models whose number of engines is not fixed."""

    def __init__(
        self,
        engines: Engines,
        scheduler: Scheduler,
        lanes: Lanes,
        rolling: Rolling,
        clock: Clock,
        settings: Settings,
    ) -> None:
        self._scheduler = scheduler
        self._lanes = lanes
        self._rolling = rolling
        self._clock = clock
        self._leaving: set[Engine] = set()
        self._pools = [pool for pool in engines.pools if pool.fewest < len(pool)]
        self._policies = [Policy(settings.scaling, pool.fewest, len(pool)) for pool in self._pools]

    async def live(self) -> None:
        """Look every second or so, for ever."""
        while self._pools:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except Exception:  # whatever it is, engines must not stay as they are for ever
                logger.exception("autoscaling failed; it is tried again")

    async def look(self) -> None:
        """Start or stop engines as the queues need them now."""
        for pool, policy in zip(self._pools, self._policies, strict=True):
            if not pool.is_asleep:
                await self._look_at(pool, policy)

    async def _look_at(self, pool: Pool, policy: Policy) -> None:
        # Somebody may have resumed one that was to go, or restarted it: then it stays.
        self._leaving = {engine for engine in self._leaving if engine.draining is not None}
        working = [each for each in pool if not each.is_asleep and each.draining is None]
        work = Work(self._scheduler.busy_runs(pool), self._lanes.wanted(pool))
        wanted = policy.wanted(self._clock.monotonic(), work, len(working))
        if wanted > len(working):
            self._grow(pool, wanted - len(working), policy.load)
        elif wanted < len(working):
            self._shrink(working, policy.load)
        for engine in [engine for engine in pool if engine in self._leaving]:
            await self._let_go(engine)

    def _grow(self, pool: Pool, count: int, load: float) -> None:
        """Keep engines that were about to stop, then wake others."""
        able = [each for each in pool if each in self._leaving or _sleeps(each)]
        for engine in able[:count]:
            self._leaving.discard(engine)
            logger.info("engine %s is asked for: there is work for %.1f", engine.name, load)
            engine.resume()
            engine.wake()

    def _shrink(self, working: list[Engine], load: float) -> None:
        """Drain the engine that is missed least: one that has not started yet, else the one with
        the fewest runs."""

        def worth(engine: Engine) -> tuple[bool, int, int]:
            return engine.is_ready, len(self._scheduler.residents(engine)), -engine.spec.index

        able = [each for each in working if not self._rolling.is_waiting(each)]
        engine = min(able, key=worth, default=None)
        if engine is None:
            return
        logger.info("engine %s is let go: there is work for %.1f", engine.name, load)
        self._leaving.add(engine)
        engine.drain(f"engine {engine.name} is let go: the others do for what there is to do")

    async def _let_go(self, engine: Engine) -> None:
        if not engine.is_ready or self._rolling.is_empty(engine):
            self._leaving.discard(engine)
            await engine.rest()
            logger.info("engine %s is asleep", engine.name)


def _sleeps(engine: Engine) -> bool:
    """Whether it may be woken: no operator has drained it."""
    return engine.is_asleep and engine.draining is None
