"""One seed, one story: a server, its disk, its engines, its clients and what happens to them.

The server's core is the real one; time, threads, disk, network and engine are simulated. Clients
train several runs at once and check every answer against the only history that is allowed: their
own operations, in order, each once, the failed ones left out.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import shutil
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

import numpy as np

from simulation.clockwork import VirtualClock, VirtualLoop
from simulation.disk import Disk, SimulatedBlobs, open_simulated
from simulation.machine import Machine, after
from simulation.weather import Weather
from tinkex.server import core as core_module
from tinkex.server.core import Core
from tinkex.server.engines.worker import EngineSpec
from tinkex.server.operations.optim_step import OPTIM_STEP
from tinkex.server.polls import Pending
from tinkex.server.promises import Outcome
from tinkex.server.protocol import requests
from tinkex.server.refusals import Refusal
from tinkex.server.settings import ModelSpec, Scaling, Scheduling, Settings, Terms, Timings
from tinkex.server.storage.database.transactions import DatabaseError
from tinkex.server.tenancy.sessions import NewSession
from tinkex.types.datum import Datum
from tinkex.types.model_input import ModelInput
from tinkex.wire.forward_backward.output import decode_forward_backward_output
from tinkex.wire.protobuf import encode_forward_backward

MODEL = "simulated/model"
_DEADLINE_S = 3 * 3600.0
_OPENING = NewSession((), {}, None, None, None, "the-one")


class Wrong(AssertionError):
    """The server broke a promise."""


class _Alarm(logging.Handler):
    """The server's own complaints about itself."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "another result" in text or " broke" in text:
            self.heard.append(f"{text} {record.exc_info and record.exc_info[1]!r}")


class World:
    """Runs one story to its end; raises `Wrong` if a promise was broken."""

    terms: Mapping[str, Terms] = MappingProxyType({})
    in_flight = Scheduling().operations_in_flight
    scaling = Scaling(runs_per_engine=1.0, average_s=0.3, grow_s=0.5, shrink_s=1.0)

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.weather = Weather.drawn(self.dice)
        self.loop = VirtualLoop(random.Random(seed + 1))
        self.clock = VirtualClock(self.loop)
        self.home = Path(tempfile.mkdtemp(prefix="simulated-", dir=_memory()))
        self.core: Core | None = None
        self.disk = Disk(self.dice, 0.0)
        self._up = asyncio.Event()
        self._serving: set[asyncio.Task[Any]] = set()
        self._damaged: set[str] = set()
        self.fleet: list[Machine] = []

    def play(self) -> None:
        alarm, logger = _Alarm(), logging.getLogger("tinkex")
        logger.addHandler(alarm)
        before, logger.propagate = logger.propagate, False
        try:
            with mock.patch("uuid.uuid4", self._number):
                self.loop.run_until_complete(self._story())
            if alarm.heard:
                raise Wrong(alarm.heard[0])
        finally:
            logger.removeHandler(alarm)
            logger.propagate = before
            self.loop.close()
            shutil.rmtree(self.home)

    def _number(self) -> uuid.UUID:
        return uuid.UUID(int=self.dice.getrandbits(128), version=4)

    # ---- the story

    async def _story(self) -> None:
        await self._boot()
        clients = [Client(self, number) for number in range(self.weather.runs)]
        tasks = [asyncio.create_task(client.live()) for client in clients]
        fates = [asyncio.create_task(self._fate()), asyncio.create_task(self._operator())]
        done, late = await asyncio.wait(tasks, timeout=_DEADLINE_S)
        for fate in fates:
            if fate.done():
                fate.result()
            fate.cancel()
        for task in done:
            task.result()
        if late:
            raise Wrong(f"{len(late)} clients wait for ever")
        await self._crash()

    async def _fate(self) -> None:
        for _ in range(self.weather.crashes):
            await asyncio.sleep(self.dice.expovariate(1.0))
            self.clock.jumped += self.dice.choice((0.0, -300.0, 300.0))
            self._damage()
            await self._crash()
            await asyncio.sleep(self.dice.choice((0.1, 3.0)))
            await self._boot()

    async def _operator(self) -> None:
        """Somebody moves runs, and drains and restarts engines, whenever it suits nobody."""
        while self.weather.moves:
            await asyncio.sleep(self.dice.expovariate(self.weather.moves))
            if self.core is None or not self._up.is_set():
                continue
            engine = self.dice.choice(list(self.core.engines))
            match self.dice.choice(("move", "move", "drain", "resume", "renew")):
                case "move":
                    for run in self.core.runs:
                        if run.place == engine.residence:
                            run.ask_to_leave("somebody moves it")
                    self.core.scheduler.pump()
                case "drain":
                    engine.drain("somebody drains it")
                case "resume":
                    engine.resume()
                case "renew":
                    engine.renew()
            if not self.core.engines.get(MODEL).takes_work:
                for each in self.core.engines:
                    each.resume()

    def _damage(self) -> None:
        """Make a wrong number of what the newest snapshot of a run says, if one is left to it."""
        for run in [] if self.core is None else self.core.runs:
            newest, before = run.snapshot, run.before
            if newest is None or before is None or self.dice.random() >= self.weather.damage:
                continue
            if not self._damaged & {newest.folder, before.folder}:
                self._damaged.add(newest.folder)
                path = self.home / "snapshots" / newest.folder / "adapter_model.safetensors"
                path.write_text(json.dumps(json.loads(path.read_text()) + 1))

    async def _boot(self) -> None:
        """Start the server on what the disk holds; a disk too full to start on is tried again."""
        settings = Settings(
            home=self.home,
            models=(ModelSpec(MODEL, "nowhere"),),
            engines=self.weather.engines,
            fewest_engines=self.weather.fewest,
            scaling=self.scaling,
            terms=self.terms,
            inline_bytes=256,
            timings=Timings(gap_timeout_s=3600.0, gap_grace_s=1800.0, restart_backoff_s=(0.1,)),
            scheduling=Scheduling(
                operations_in_flight=self.in_flight,
                snapshot_steps=self.weather.snapshot_steps,
                resident_runs=self.weather.places,
                deaths_before_poison=self.weather.poison,
            ),
        )
        while True:
            disk = self.disk = Disk(self.dice, self.weather.full)
            with (
                mock.patch.object(core_module, "open_store", partial(open_simulated, disk=disk)),
                mock.patch.object(core_module, "SegmentBlobs", partial(SimulatedBlobs, disk=disk)),
                mock.patch("tinkex.server.storage.folders._sync"),
            ):
                core = self.core = Core(settings, self._launch, self.clock)
                try:
                    await self._served(core.start())
                    break
                except Exception:
                    await self._crash()
        self._up.set()

    def _launch(self, _: EngineSpec) -> Machine:
        weather = self.weather
        return Machine(self.dice, weather.mortality, weather.unsaved, weather.places, self.fleet)

    async def _served(self, call: Awaitable[Any]) -> Any:
        task = asyncio.ensure_future(call)
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        return await task

    async def _crash(self) -> None:
        """A power cut: what is not on the disk is gone, what the server was doing ends here."""
        core, self.core = self.core, None
        self._up.clear()
        if core is None:
            return
        self.disk.lost_power = True
        core.scheduler._stopping = True
        while victims := sorted(filter(_serves, asyncio.all_tasks()), key=_age):
            self.loop.under_way.clear()
            for task in victims:
                task.cancel()
            await asyncio.wait(victims)
        core.store.close()
        core.home.release()

    # ---- the network

    async def ask(self, call: Callable[[Core], Awaitable[Any]]) -> Any:
        """Ask until there is an answer: requests and answers get lost, late and doubled."""
        while True:
            await self._up.wait()
            await asyncio.sleep(self.dice.choice((0.0, 0.0, 0.01, 1.0)))
            core = self.core
            if core is None or not self._up.is_set() or self.dice.random() < self.weather.lost:
                await asyncio.sleep(self.dice.random())
                continue
            copies = 1 + (self.dice.random() < self.weather.lost)
            asked = [asyncio.ensure_future(_named(call(core))) for _ in range(copies)]
            await asyncio.wait(asked)
            answer = asked[-1]
            errors = [one.exception() for one in asked if not one.cancelled()]
            if answer.cancelled() or self.dice.random() < self.weather.lost:
                continue
            error = errors[-1]
            if error is None:
                return answer.result()
            busy = isinstance(error, Refusal) and error.status in (429, 503)
            if busy or isinstance(error, OSError | DatabaseError):
                await asyncio.sleep(1.0)
                continue
            raise Wrong(f"refused: {error!r}") from error


async def _named(call: Awaitable[Any]) -> Any:
    return await call


class Client:
    """Trains one run: several operations under way at once, in any order on the network."""

    def __init__(self, world: World, number: int) -> None:
        self._world, self._number = world, number
        self._tenant = f"tenant-{number % 2}"
        self._operations = world.weather.operations
        self._model = ""

    async def live(self) -> None:
        world, tenant = self._world, self._tenant
        session = await world.ask(lambda core: core.sessions.create(tenant, _OPENING))
        made = {
            "session_id": session,
            "model_seq_id": self._number,
            "base_model": MODEL,
            "lora_config": {"rank": 8, "seed": self._number},
        }
        asked = requests.CREATE_MODEL.read(made)
        accepted = await world.ask(lambda core: core.training.create_model(tenant, asked))
        self._model = accepted.model_id
        first = await self._result(accepted.request_id)
        results: list[Any] = []
        for start in range(1, self._operations + 1, 5):
            numbers = range(start, min(start + 5, self._operations + 1))
            results += await asyncio.gather(*map(self._operate, numbers))
        if not first.failed:
            self._check(results)

    async def _operate(self, seq_id: int) -> Outcome:
        world, tenant = self._world, self._tenant
        if seq_id % 3:
            body = self._forward_body(seq_id)
            accepted = await world.ask(lambda core: core.training.forward_backward(tenant, body))
        else:
            values = {
                "model_id": self._model,
                "seq_id": seq_id,
                "adam_params": {"learning_rate": seq_id * 1e-6},
            }
            body = json.dumps(values).encode()
            accepted = await world.ask(
                lambda core: core.training.operation(tenant, OPTIM_STEP, values, body)
            )
        if accepted.request_id != f"{self._model}:{seq_id}":
            raise Wrong(f"operation {seq_id} was promised as {accepted.request_id}")
        return await self._result(accepted.request_id)

    async def _result(self, request_id: str) -> Outcome:
        while True:
            answer = await self._world.ask(
                lambda core: core.futures.retrieve(self._tenant, request_id, False)
            )
            if not isinstance(answer, Pending):
                assert isinstance(answer, Outcome)
                return answer

    def _forward_body(self, seq_id: int) -> bytes:
        tokens = [seq_id, *([1] * (300 if seq_id % 2 else 2))]
        inputs = {
            "target_tokens": np.array(tokens, np.int64),
            "weights": np.ones(len(tokens), np.float32),
        }
        one = Datum(model_input=ModelInput.from_ints(tokens), loss_fn_inputs=inputs)
        return encode_forward_backward(self._model, seq_id, [one], "cross_entropy", None, False)

    def _check(self, results: list[Outcome]) -> None:
        """Every answer shows the state after it; there is one state it may show."""
        state = self._number
        for seq_id, outcome in enumerate(results, start=1):
            if outcome.failed:
                self._excuse(seq_id, outcome)
                continue
            state = after(state, seq_id)
            shown = _shown(outcome)
            if shown != state:
                raise Wrong(f"run {self._number}, operation {seq_id}: {shown} instead of {state}")

    def _excuse(self, seq_id: int, outcome: Outcome) -> None:
        """Only an engine that died of it again and again is a reason to fail."""
        text = outcome.body.decode()
        deadly = "the engine died" in text and self._world.weather.poison < 1000
        if not deadly:
            raise Wrong(f"run {self._number}, operation {seq_id} failed: {text}")


def _shown(outcome: Outcome) -> int:
    if outcome.kind == "protobuf":
        return round(decode_forward_backward_output(outcome.body).metrics["loss:sum"])
    return round(json.loads(outcome.body)["metrics"]["state"])


def _serves(task: asyncio.Task[Any]) -> bool:
    """Whether a task is the server's: the story's own are told by their names."""
    name = getattr(task.get_coro(), "__qualname__", "")
    mine = ("World._story", "World._fate", "World._operator", "Client.")
    return task is not asyncio.current_task() and not name.startswith(mine)


def _age(task: asyncio.Task[Any]) -> int:
    """Tasks are numbered as they are made; a set of them has no order of its own."""
    return int(task.get_name().removeprefix("Task-"))


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
