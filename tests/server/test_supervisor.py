"""An engine through its lives: answers, failures, deaths and words about them."""

from __future__ import annotations

import asyncio

import pytest

from support.fake_engine import FakeEngine
from tinkex.engine.messages import CreateRun, LoraSpec, OptimStep, RunInfo
from tinkex.server.clock import SystemClock
from tinkex.server.engines.engine import Engine, EngineLost, RunLost
from tinkex.server.engines.worker import EngineSpec
from tinkex.server.settings import ModelSpec


def _engine(fake: FakeEngine) -> Engine:
    return Engine(EngineSpec(ModelSpec("fake", "")), fake.launch, SystemClock(), (0.01,))


async def test_answers_and_failures_come_to_who_asked() -> None:
    engine = _engine(FakeEngine())
    engine.wake()
    await engine.ready()
    assert isinstance(await engine.submit(CreateRun("1", "r", LoraSpec(4))), RunInfo)
    with pytest.raises(RunLost, match="not in memory"):
        await engine.submit(OptimStep("2", "other", "adamw", {"learning_rate": 1.0}))
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
