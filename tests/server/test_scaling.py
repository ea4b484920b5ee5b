"""Engines come when queues ask for them and go when they are idle; clients only see the speed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.fake_engine import FakeEngine
from support.served import Api, served
from tinkex.server.engines.scaling import Policy, Work
from tinkex.server.settings import Scaling

PATIENT = Scaling(1.5, 48.0, average_s=10.0, grow_s=10.0, shrink_s=300.0)
QUICK = Scaling(1.0, 48.0, average_s=0.001, grow_s=0.0001, shrink_s=0.0001)


class Played:
    """A policy asked every second of a simulated time, engines following at once."""

    def __init__(self, fewest: int = 1, most: int = 8) -> None:
        self.policy = Policy(PATIENT, fewest, most)
        self.now, self.engines = 0.0, fewest
        self.changes: list[tuple[float, int]] = []

    def last(self, seconds: int, work: Callable[[int], Work]) -> int:
        for second in range(seconds):
            self.now += 1.0
            wanted = self.policy.wanted(self.now, work(second), self.engines)
            if wanted != self.engines:
                self.changes.append((self.now, wanted))
            self.engines = wanted
        return self.engines


def runs(count: int) -> Callable[[int], Work]:
    return lambda _: Work(count, 0)


def test_more_busy_runs_than_engines_should_have_bring_engines_within_a_minute() -> None:
    played = Played()
    assert played.last(60, runs(8)) == 6, "one and a half for each"
    assert played.last(600, runs(8)) == 6, "and there it stays"
    assert Played().last(60, lambda _: Work(0, 144)) == 3, "samples count too"


def test_neither_a_burst_nor_a_client_that_pauses_brings_an_engine() -> None:
    assert Played().last(12, lambda second: Work(4 if second < 3 else 0, 0)) == 1
    assert Played().last(600, lambda second: Work(2 if second % 4 == 0 else 0, 0)) == 1


def test_an_idle_engine_goes_after_minutes_one_at_a_time_and_never_the_last_ones() -> None:
    played = Played(fewest=2, most=4)
    played.last(60, runs(8))
    assert played.engines == 4
    played.changes.clear()
    assert played.last(1200, runs(0)) == 2
    assert [wanted for _, wanted in played.changes] == [3, 2]
    first, second = (at for at, _ in played.changes)
    assert first - 60 >= PATIENT.shrink_s
    assert second - first >= PATIENT.shrink_s


def test_no_steady_load_makes_engines_come_and_go() -> None:
    for count in range(1, 13):
        played = Played()
        played.last(1800, runs(count))
        wanted = [wanted for _, wanted in played.changes]
        assert wanted == sorted(wanted), "it grows, and nothing grown goes again"
        assert all(at < 60 for at, _ in played.changes)


# ---- the server


async def until(api: Api, happened: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not happened():
            await api.core.autoscaling.look()
            await asyncio.sleep(0.005)


def awake(api: Api) -> int:
    return sum(engine.is_ready for engine in api.core.engines)


async def test_a_second_engine_comes_under_load_takes_a_run_and_goes_when_there_is_nothing_to_do(
    tmp_path: Path,
) -> None:
    engine = FakeEngine()
    async with served(tmp_path, engine, engines=2, fewest_engines=1, scaling=QUICK) as api:
        await until(api, lambda: awake(api) == 1)
        session = await api.session()
        models = [await api.model(session, number) for number in range(4)]
        engine.gate = asyncio.Event()
        for model in models:
            await api.step(model, 1)
        await until(api, lambda: awake(api) == 2)
        engine.gate.set()
        for model in models:
            await api.result(f"{model}:1")
        await until(api, lambda: awake(api) == 1)
        [sleeper] = [each for each in api.core.engines if each.is_asleep]
        assert sleeper.deaths == 0, "nothing died"
        for model in models:
            await api.step(model, 2)
            await api.result(f"{model}:2")
            holders = [each for each in engine.workers if model in each.runs and not each.is_dead]
            assert [each.runs[model][1:] for each in holders] == [["step:0.1"] * 2]
        assert api.core.carrier.replay_differences == 0


async def test_an_engine_that_finds_no_place_keeps_nobody_and_is_no_longer_asked_for_when_idle(
    tmp_path: Path,
) -> None:
    engine = FakeEngine()
    async with served(tmp_path, engine, engines=2, fewest_engines=1, scaling=QUICK) as api:
        await until(api, lambda: awake(api) == 1)
        engine.place = asyncio.Event()
        session = await api.session()
        models = [await api.model(session, number) for number in range(3)]
        engine.gate = asyncio.Event()
        for model in models:
            await api.step(model, 1)
        second = list(api.core.engines)[1]
        await until(api, lambda: second.is_held_up)
        assert second.reason == "the fake engine waits for a place"
        assert (await api.send("GET", "healthz")).status_code == 200
        engine.gate.set()
        for model in models:
            await api.result(f"{model}:1")
        await until(api, lambda: second.is_asleep)
