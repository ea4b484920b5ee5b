"""Many engines on virtual time: where runs are placed, who waits how long, what choosing costs.

The server's core is the real one. Engines take a known time for each call, one after another for
training and side by side for samples, so that what a client waits beyond that is the queue's.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from simulation.machine import Machine
from simulation.world import MODEL, Client, World
from tinkex.engine.messages import (
    Command,
    Done,
    ForwardBackward,
    LoadRun,
    OptimStep,
    Sample,
    SampleResult,
    SamplingParams,
)
from tinkex.engine.messages import Sequence as Sampled
from tinkex.server.core import Core
from tinkex.server.engines.worker import EngineSpec
from tinkex.server.sampling.lanes import Lanes
from tinkex.server.sampling.rides import ServedWeights
from tinkex.server.settings import Terms
from tinkex.server.training.placement import Placement

CALL_S, STEP_S, SAMPLE_S = 0.1, 0.02, 0.5
_FOUND = SampleResult((Sampled(np.zeros(1, np.int32), np.zeros(1, np.float32), "length"),))


class _Prompt(random.Random):
    """No delay but the engines' own: disks and networks take the first of what they may take."""

    def choice(self, seq: Any) -> Any:
        return seq[0]


class TimedMachine(Machine):
    """An engine that never dies and takes its time; `worked` is how much it had to do, `moved` how
    many runs were brought to it that had been elsewhere."""

    free_at = worked = 0.0
    moved = 0

    async def send(self, command: Command) -> None:
        loop = asyncio.get_running_loop()
        if isinstance(command, Sample):
            loop.call_later(SAMPLE_S, self._answer, Done(command.op, _FOUND))
            return
        cost = CALL_S if isinstance(command, ForwardBackward) else 0.0
        cost = STEP_S if isinstance(command, OptimStep) else cost
        self.worked += cost
        self.moved += isinstance(command, LoadRun)
        self.free_at = max(loop.time(), self.free_at) + cost
        event = Done(command.op, self._apply(command))
        loop.call_later(self.free_at - loop.time(), self._answer, event)


@dataclass
class Measured:
    """Seconds of virtual time a client waited beyond its work, by tenant; of real time that
    choosing took; requests; each engine's part of the time spent working."""

    waits: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    choosing_s: float = 0.0
    requests: int = 0
    busy: list[float] = field(default_factory=list)
    moves: int = 0

    @property
    def all_waits(self) -> list[float]:
        return [wait for waits in self.waits.values() for wait in waits]

    def median(self, tenant: str) -> float:
        return statistics.median(self.waits[tenant])

    def late(self) -> float:
        """What one in a hundred waited longer than."""
        return statistics.quantiles(self.all_waits, n=100)[98]


class Fleet(World):
    """`runs_of` says how many runs each tenant trains, `steps` how many steps each makes."""

    def __init__(self, engines: int, runs_of: dict[str, int], steps: int = 8) -> None:
        seed = 1
        super().__init__(seed)
        calm = replace(self.weather, mortality=0.0, full=0.0, lost=0.0, crashes=0, unsaved=0.0)
        runs = sum(runs_of.values())
        fixed = replace(calm, engines=engines, fewest=engines, moves=0.0)
        self.weather = replace(fixed, runs=runs, places=64)
        self.measured = Measured()
        self._runs_of, self._steps = runs_of, steps
        self._machines: list[TimedMachine] = []
        self.dice = self.loop.dice = _Prompt(seed)

    def _launch(self, _: EngineSpec) -> Machine:
        made = TimedMachine(self.dice, 0.0, 0.0, self.weather.places, self.fleet)
        self._machines.append(made)
        return made

    async def _story(self) -> None:
        await self._boot()
        assert self.core is not None
        pool = self.core.engines.get(MODEL)
        while not all(engine.is_ready for engine in pool):
            await asyncio.sleep(0.1)
        begun = self.loop.time()
        with self._timed():
            tenants = [name for name, count in self._runs_of.items() for _ in range(count)]
            clients = [_Trainer(self, number, tenant) for number, tenant in enumerate(tenants)]
            await asyncio.gather(*(client.live() for client in clients))
            await asyncio.gather(*map(self._sample, range(16 * len(pool))))
        span = self.loop.time() - begun
        self.measured.busy = [machine.worked / span for machine in self._machines]
        self.measured.moves = sum(machine.moved for machine in self._machines)
        await self._crash()

    async def ask(self, call: Callable[[Core], Awaitable[Any]]) -> Any:
        """At once, and nothing gets lost."""
        assert self.core is not None
        return await call(self.core)

    async def _sample(self, number: int) -> None:
        """Samples of prompts that begin alike in groups of eight."""
        assert self.core is not None
        prompt = np.full(256, number // 8, np.int32)
        pool, lanes = self.core.engines.get(MODEL), self.core.sampling.lanes
        command = Sample("", "", prompt, SamplingParams(max_tokens=1))
        self.measured.requests += 1
        ride = lanes.enter("tenant-0", pool, ServedWeights(), command)
        await ride.result

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        """Counts the real time that choosing engines takes."""
        with contextlib.ExitStack() as undo:
            for owner, name in ((Placement, "crews"), (Placement, "balance"), (Lanes, "_route")):
                undo.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, self._timer(getattr(owner, name)))
            yield

    def _timer(self, call: Any) -> Any:
        def timed(*arguments: Any) -> Any:
            begun = time.thread_time()
            try:
                return call(*arguments)
            finally:
                self.measured.choosing_s += time.thread_time() - begun

        return timed


class _Trainer(Client):
    """Awaits each result, and notes how long it waited beyond what the engine needed."""

    def __init__(self, fleet: Fleet, number: int, tenant: str) -> None:
        super().__init__(fleet, number)
        self._fleet, self._tenant = fleet, tenant
        self._operations = 3 * fleet._steps

    async def _operate(self, seq_id: int) -> Any:
        begun = self._fleet.loop.time()
        outcome = await super()._operate(seq_id)
        cost = CALL_S if seq_id % 3 else STEP_S
        self._fleet.measured.requests += 1
        waited = self._fleet.loop.time() - begun - cost
        self._fleet.measured.waits[self._tenant].append(max(0.0, waited))
        return outcome


def played(
    engines: int,
    runs_of: dict[str, int],
    steps: int = 8,
    terms: Mapping[str, Terms] | None = None,
    in_flight: int = World.in_flight,
) -> Measured:
    """One story with so many engines, each of which has so many operations at once."""
    fleet = Fleet(engines, runs_of, steps)
    fleet.terms, fleet.in_flight = terms or {}, in_flight
    fleet.play()
    return fleet.measured
