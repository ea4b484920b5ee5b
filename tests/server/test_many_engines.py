"""A model served by several engines: runs are placed and moved, samples go where they are best
served, and an engine that dies or is drained loses nothing."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from support.fake_engine import FakeEngine, FakeWorker
from support.served import MODEL, QUICK, Api, served
from tinkex.engine.messages import LoadWeights, Sample, SamplingParams
from tinkex.server.engines.engine import Engine
from tinkex.server.sampling.rides import Ride, ServedWeights

ENDLESS = 999  # the fake engine holds samples of so many tokens
RESTLESS = dataclasses.replace(QUICK, run_move_s=0.0)


async def until(happened: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not happened():
            await asyncio.sleep(0.005)


def holder(api: Api, model: str) -> FakeWorker:
    """The one engine that has a run in its memory."""
    lives = [api.engine.of(index) for index in range(len(engines(api)))]
    [found] = [worker for worker in lives if model in worker.runs and not worker.is_dead]
    return found


def engines(api: Api) -> list[Engine]:
    return list(api.core.engines)


async def all_ready(api: Api) -> None:
    await until(lambda: all(engine.is_ready for engine in engines(api)))


async def trained(api: Api, model: str, first: int, last: int) -> None:
    for seq in range(first, last + 1):
        await api.step(model, seq)
        await api.result(f"{model}:{seq}")


async def test_two_runs_are_placed_on_two_engines_and_each_is_trained_where_it_is(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, engines=2) as api:
        await all_ready(api)
        session = await api.session()
        one, two = await api.model(session, 0), await api.model(session, 1)
        await trained(api, one, 1, 2)
        await trained(api, two, 1, 3)
        assert holder(api, one) is not holder(api, two)
        assert len(holder(api, one).runs[one]) == 3
        assert len(holder(api, two).runs[two]) == 4


async def test_the_runs_of_an_engine_that_died_come_back_on_another_at_once(
    tmp_path: Path,
) -> None:
    slow = dataclasses.replace(QUICK, restart_backoff_s=(3600.0,))
    async with served(tmp_path, engines=2, timings=slow) as api:
        await all_ready(api)
        model = await api.model(await api.session())
        await trained(api, model, 1, 2)
        first = holder(api, model)
        first.die()
        await trained(api, model, 3, 3)
        assert holder(api, model) is not first
        steps = ["step:0.1"] * 3
        assert holder(api, model).runs[model][1:] == steps, "nothing lost, nothing doubled"


async def test_a_run_is_moved_to_an_engine_with_nothing_to_do_and_stays_there(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, engines=2, timings=RESTLESS) as api:
        await all_ready(api)
        idle = engines(api)[1]
        idle.drain("not yet")
        session = await api.session()
        models = [await api.model(session, number) for number in range(2)]
        for model in models:
            await trained(api, model, 1, 1)
        assert len({holder(api, model).spec.index for model in models}) == 1
        idle.resume()
        api.core.scheduler.balance()
        moved = {model: "moving" in (_reason(api, model) or "") for model in models}
        assert sum(moved.values()) == 1, "one is enough, and its client is told why it waits"
        for _ in range(3):
            for model in models:
                await trained(api, model, await _next(api, model), await _next(api, model))
            api.core.scheduler.balance()
        assert len({holder(api, model).spec.index for model in models}) == 2
        restores = [each for worker in api.engine.workers for each in worker.seen]
        assert sum("restore" in each.op for each in restores) == 1, "no run goes to and fro"


def _reason(api: Api, model: str) -> str | None:
    run = api.core.runs.find(model)
    assert run is not None
    return run.restoring


async def _next(api: Api, model: str) -> int:
    run = api.core.runs.find(model)
    assert run is not None
    return max(run.log.entries, default=run.log.base) + 1


async def test_a_drained_engine_keeps_no_run_and_gets_none_until_it_takes_work_again(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, engines=2) as api:
        await all_ready(api)
        model = await api.model(await api.session())
        await trained(api, model, 1, 2)
        before = holder(api, model)
        engine = engines(api)[before.spec.index]
        engine.drain("it is being upgraded")
        await until(lambda: not before.runs)
        await trained(api, model, 3, 3)
        assert holder(api, model) is not before
        assert len(holder(api, model).runs[model]) == 4
        [shown] = [each for each in await _shown(api) if each["name"] == engine.name]
        assert shown["draining"] == "it is being upgraded"
        assert (await api.send("GET", "healthz")).status_code == 200, "the other one serves"


async def _shown(api: Api) -> list[dict[str, Any]]:
    from tinkex.server.views.viewers import Viewer

    found = await api.core.now.show(Viewer("", operator=True))
    engines: list[dict[str, Any]] = found["engines"]
    return engines


def enter(api: Api, prompt: list[int], tokens: int = ENDLESS, samples: int = 1) -> Ride:
    command = Sample("", "", np.array(prompt, np.int32), SamplingParams(max_tokens=tokens), samples)
    pool = api.core.engines.get(MODEL)
    return api.core.sampling.lanes.enter("me", pool, ServedWeights(), command)


def held(api: Api) -> list[int]:
    return [len(api.engine.of(index).held) for index in range(len(engines(api)))]


async def test_samples_of_the_base_model_are_spread_over_all_engines(tmp_path: Path) -> None:
    async with served(tmp_path, engines=4) as api:
        await all_ready(api)
        for number in range(12):
            enter(api, [number])
        await until(lambda: held(api) == [3, 3, 3, 3])


async def test_a_prompt_goes_where_its_beginning_is_cached_unless_that_engine_has_too_much_to_do(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, engines=2) as api:
        await all_ready(api)
        shared = list(range(200))
        await enter(api, shared, tokens=2).result
        await enter(api, [7] * 200, tokens=2).result
        home = next(w for w in api.engine.workers if any(isinstance(c, Sample) for c in w.seen))
        for number in range(3):
            enter(api, [*shared, number])
        await until(lambda: len(home.held) == 3)
        for number in range(9):
            enter(api, [*shared, number])
        await until(lambda: sum(held(api)) == 12)
        assert min(held(api)) >= 4, "within bounds"


async def test_a_cancelled_sample_is_stopped_on_the_engine_that_has_it(tmp_path: Path) -> None:
    async with served(tmp_path, engines=3) as api:
        await all_ready(api)
        rides = [enter(api, [number]) for number in range(3)]
        await until(lambda: held(api) == [1, 1, 1])
        api.core.sampling.lanes.cancel(rides[1])
        await until(lambda: held(api) == [1, 0, 1])


async def test_samples_of_an_engine_that_died_go_on_elsewhere(tmp_path: Path) -> None:
    slow = dataclasses.replace(QUICK, restart_backoff_s=(3600.0,))
    async with served(tmp_path, engines=2, timings=slow) as api:
        await all_ready(api)
        for number in range(4):
            enter(api, [number])
        await until(lambda: held(api) == [2, 2])
        api.engine.of(0).die()
        await until(lambda: len(api.engine.of(1).held) == 4)


async def saved(api: Api, model: str, seq: int) -> str:
    body = {"model_id": model, "seq_id": seq, "sampling_session_seq_id": 0}
    answer = await api.post("save_weights_for_sampler", body)
    return str((await api.result(answer["request_id"]))["sampling_session_id"])


async def sampled(api: Api, sampler: str, seq: int, tokens: int = 2) -> str:
    body = {
        "sampling_session_id": sampler,
        "seq_id": seq,
        "num_samples": 1,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
        "sampling_params": {"max_tokens": tokens},
    }
    return str((await api.post("asample", body))["request_id"])


async def test_weights_that_are_not_on_disk_yet_are_sampled_where_their_run_is(
    tmp_path: Path,
) -> None:
    engine = FakeEngine()
    engine.disk = asyncio.Event()
    async with served(tmp_path, engine, engines=2) as api:
        await all_ready(api)
        model = await api.model(await api.session())
        await trained(api, model, 1, 1)
        sampler = await saved(api, model, 2)
        home = holder(api, model)
        for seq in range(12):
            await sampled(api, sampler, seq, ENDLESS)
        await until(lambda: len(home.held) == 12)
        engine.disk.set()
        await api.on_disk()
        for seq in range(12, 24):
            await sampled(api, sampler, seq, ENDLESS)
        await until(lambda: sum(held(api)) == 24)
        assert min(held(api)) > 0, "a sampler that many ask for comes to another engine by itself"
        loads = [each for worker in engine.workers for each in worker.seen]
        assert sum(isinstance(each, LoadWeights) for each in loads) == 1


async def test_weights_lost_with_their_engine_are_made_again_on_another_and_sampled_there(
    tmp_path: Path,
) -> None:
    slow = dataclasses.replace(QUICK, restart_backoff_s=(3600.0,))
    engine = FakeEngine()
    engine.disk = asyncio.Event()
    async with served(tmp_path, engine, engines=2, timings=slow) as api:
        await all_ready(api)
        model = await api.model(await api.session())
        await trained(api, model, 1, 1)
        sampler = await saved(api, model, 2)
        holder(api, model).die()
        assert isinstance(await api.result(await sampled(api, sampler, 0)), bytes)


async def test_a_custom_loss_is_checked_by_an_engine_that_lives(tmp_path: Path) -> None:
    slow = dataclasses.replace(QUICK, restart_backoff_s=(3600.0,))
    async with served(tmp_path, engines=2, timings=slow) as api:
        await all_ready(api)
        api.engine.of(0).die()
        await until(lambda: not engines(api)[0].is_ready)
        loss_id = await api.core.losses.create(
            "tml-alice", await api.session(), 1, "mine", {"inputs": [], "nodes": []}
        )
        await until(lambda: any("check" in each.op for each in api.engine.of(1).seen))
        assert loss_id.endswith(":loss:1")
