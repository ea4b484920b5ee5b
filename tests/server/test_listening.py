"""What ends after some time ends after time in which the server was there, whatever clocks say."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from support.jumping_clock import JumpingClock
from support.served import QUICK, Api, served
from tinkex.server.listening import Listening

NIGHT = 30 * 3600.0


class _Clock:
    def __init__(self) -> None:
        self.wall, self.steady = 1_000_000.0, 50.0

    def now(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.steady


class _Life:
    """A server's time, looked at every ten seconds."""

    def __init__(self) -> None:
        self.clock = _Clock()
        self.listening = Listening(self.clock)

    def listen(self, seconds: int) -> None:
        for _ in range(seconds // 10):
            self.clock.wall += 10.0
            self.clock.steady += 10.0
            self.listening.look()


def test_without_jumps_it_is_the_wall_clock() -> None:
    life = _Life()
    life.listen(1000)
    assert life.listening.before(300.0) == life.clock.wall - 300.0
    assert life.listening.before(5000.0) == life.clock.wall - 5000.0, "before this life"


@pytest.mark.parametrize("steady", [0.0, NIGHT])
def test_a_night_asleep_or_stopped_makes_nothing_older(steady: float) -> None:
    life = _Life()
    life.listen(500)
    made = life.clock.wall
    life.listen(100)
    life.clock.wall += NIGHT
    life.clock.steady += steady
    life.listening.look()
    life.listen(100)
    assert life.listening.before(300.0) < made
    life.listen(200)
    assert life.listening.before(300.0) > made


def test_a_clock_that_is_set_back_makes_nothing_older() -> None:
    life = _Life()
    life.listen(500)
    life.clock.wall -= NIGHT
    life.listen(10)
    made = life.clock.wall
    life.listen(100)
    assert life.listening.before(300.0) < made
    life.listen(300)
    assert life.listening.before(300.0) > made


def test_many_jumps_take_no_more_memory() -> None:
    life = _Life()
    for _ in range(5000):
        life.clock.wall += 100.0
        life.listening.look()
    assert len(life.listening._stretches) <= 1024


async def _asleep(api: Api, seconds: float) -> None:
    clock = api.core.listening._clock
    assert isinstance(clock, JumpingClock)
    clock.wall += seconds
    await api.core.maintenance.tick()


@pytest.mark.parametrize("fetched", [True, False])
async def test_a_jump_of_the_clock_expires_no_result(tmp_path: Path, fetched: bool) -> None:
    async with served(tmp_path) as api:
        api.core.listening._clock = JumpingClock()
        model = await api.model(await api.session())
        await api.forward(model, 1)
        await api.step(model, 2)
        await api.result(f"{model}:2")
        if fetched:
            await api.result(f"{model}:1")
        await _asleep(api, 0.0)
        await _asleep(api, NIGHT)
        api.core.promises.drop(f"{model}:1")
        assert isinstance(await api.result(f"{model}:1"), bytes)


async def test_a_jump_of_the_clock_deletes_no_folder_that_is_about_to_be_named(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as api:
        api.core.listening._clock = JumpingClock()
        name = api.core.weights.seal(api.core.weights.begin())
        await _asleep(api, NIGHT)
        assert name in api.core.weights.names()
        os.utime(api.core.weights.path(name), (1.0, 1.0))
        await _asleep(api, 0.0)
        assert name not in api.core.weights.names(), "old ones go"


async def test_a_jump_of_the_clock_ends_no_weights_of_an_ended_session(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        api.core.listening._clock = JumpingClock()
        session = await api.session()
        body = {"model_id": await api.model(session), "seq_id": 1, "sampling_session_seq_id": 0}
        saved = await api.post("save_weights_for_sampler", body)
        await api.result(saved["request_id"])
        await api.on_disk()
        await api.post(f"sessions/{session}/finish", {"reason": {"type": "success"}})
        for name in api.core.weights.names():
            os.utime(api.core.weights.path(name), (1.0, 1.0))
        await _asleep(api, NIGHT)
        assert len(api.core.weights.names()) == 1


async def test_time_that_was_listened_to_expires_results(tmp_path: Path) -> None:
    timings = dataclasses.replace(QUICK, result_retention_s=100.0)
    async with served(tmp_path, timings=timings) as api:
        clock = api.core.listening._clock = JumpingClock()
        model = await api.model(await api.session())
        await api.forward(model, 1)
        await api.result(f"{model}:1")
        for _ in range(3):
            clock.awake += 50.0
            await api.core.maintenance.tick()
        api.core.promises.drop(f"{model}:1")
        assert (await api.poll(f"{model}:1")).status_code == 410
