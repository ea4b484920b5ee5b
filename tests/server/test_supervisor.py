"""An engine through its lives: answers, failures, deaths and words about them."""

from __future__ import annotations

import asyncio
import re

import pytest

from support.fake_engine import FakeEngine
from support.jumping_clock import JumpingClock
from tinkex.engine.messages import CreateRun, LoraSpec, OptimStep, RunInfo
from tinkex.server.clock import Clock, SystemClock
from tinkex.server.engines.engine import Engine, EngineLost, RunLost
from tinkex.server.engines.worker import EngineSpec
from tinkex.server.settings import ModelSpec


def _engine(fake: FakeEngine, clock: Clock | None = None) -> Engine:
    spec = EngineSpec(ModelSpec("fake", ""))
    return Engine(spec, fake.launch, clock or SystemClock(), (0.01,))


async def test_answers_and_failures_come_to_who_asked() -> None:
    engine = _engine(FakeEngine())
    engine.wake()
    await engine.ready()
    assert isinstance(await engine.submit(CreateRun("1", "r", LoraSpec(4))), RunInfo)
    with pytest.raises(RunLost, match="not in memory"):
        await engine.submit(OptimStep("2", "other", "adamw", {"learning_rate": 1.0}))
    await engine.stop()


async def test_of_an_engine_that_does_not_answer_it_is_said_for_how_long() -> None:
    fake, clock = FakeEngine(), JumpingClock()
    engine = _engine(fake, clock)
    engine.wake()
    await engine.ready()
    clock.awake += 600.0
    assert engine.condition == "", "nothing was asked of it"
    fake.gate = asyncio.Event()
    asking = asyncio.create_task(engine.submit(CreateRun("1", "r", LoraSpec(4))))
    while not engine.under_way:
        await asyncio.sleep(0)
    clock.awake += 600.0
    assert re.fullmatch("it has not answered for 6[0-9][0-9] s", engine.condition)
    assert engine.state == "ready"
    fake.gate.set()
    await asking
    assert engine.condition == ""
    await engine.stop()


async def test_death_is_told_to_everyone_and_a_new_life_begins() -> None:
    fake = FakeEngine()
    engine = _engine(fake)
    phases: list[str] = []
    engine.listen(lambda: phases.append(engine.phase))
    engine.wake()
    await engine.ready()
    fake.gate = asyncio.Event()
    asking = asyncio.create_task(engine.submit(CreateRun("1", "r", LoraSpec(4))))
    await asyncio.sleep(0)
    fake.current.die()
    fake.gate.set()
    with pytest.raises(EngineLost, match="killed"):
        await asking
    assert "killed" in engine.reason
    await engine.ready()
    assert engine.life == 2
    assert phases[:3] == ["ready", "restarting", "ready"]
    await engine.stop()
    assert engine.phase == "stopped"
    with pytest.raises(EngineLost):
        await engine.submit(CreateRun("9", "r", LoraSpec(4)))


async def test_an_engine_that_takes_no_command_is_not_ready_before_its_end_is_heard_of() -> None:
    """A large process takes a second to be gone; what is sent meanwhile did not kill it."""
    fake = FakeEngine()
    engine = _engine(fake)
    engine.wake()
    await engine.ready()
    fake.current.is_dead = True
    with pytest.raises(EngineLost, match="dead"):
        await engine.submit(CreateRun("1", "r", LoraSpec(4)))
    assert engine.phase == "restarting"
    assert "being restarted" in engine.reason
    fake.current.die()
    await engine.ready()
    assert (engine.life, engine.deaths) == (2, 1)
    assert isinstance(await engine.submit(CreateRun("1", "r", LoraSpec(4))), RunInfo)
    await engine.stop()


async def test_an_engine_that_does_not_start_is_tried_again() -> None:
    fake = FakeEngine()
    fake.starts_to_fail = 3
    engine = _engine(fake)
    engine.wake()
    await engine.ready()
    assert len(fake.workers) == 4
    await engine.stop()


async def test_what_a_start_waits_for_is_said_to_those_who_wait() -> None:
    fake = FakeEngine()
    fake.place = asyncio.Event()
    engine = _engine(fake)
    told = asyncio.Event()
    engine.listen(told.set)
    engine.wake()
    await told.wait()
    assert (engine.phase, engine.reason) == ("starting", "the fake engine waits for a place")
    fake.place.set()
    await engine.ready()
    assert engine.reason == ""
    await engine.stop()
