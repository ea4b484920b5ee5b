"""The engine's memory is shared out: never more runs than fit, and no run keeps the others out."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.fake_engine import FakeEngine
from support.served import MODEL, QUICK, Api, served
from tinkex.server.operations.run import Run
from tinkex.server.settings import Scheduling

FEW = Scheduling(resident_runs=4)


async def _ask_for_model(api: Api, session: str, number: int) -> str:
    """A creation that nobody waits for."""
    lora = {"rank": 8, "seed": number}
    body = {"session_id": session, "model_seq_id": number, "base_model": MODEL, "lora_config": lora}
    return str((await api.post("create_model", body))["request_id"])


def _full_engine() -> FakeEngine:
    engine = FakeEngine()
    engine.max_runs = FEW.resident_runs
    return engine


def _run(api: Api, model: str) -> Run:
    run = api.core.runs.find(model)
    assert run is not None
    return run


async def test_many_more_creations_at_once_than_places_all_end(tmp_path: Path) -> None:
    engine = _full_engine()
    async with served(tmp_path, engine, scheduling=FEW) as api:
        session = await api.session()
        asked = await asyncio.gather(*(_ask_for_model(api, session, n) for n in range(64)))
        answers = await asyncio.gather(*map(api.result, asked))
        assert all("error" not in answer for answer in answers)
        assert engine.most_runs <= FEW.resident_runs
        other = api.as_tenant("tml-bob")
        model = await other.model(await other.session())
        await other.step(model, 1)
        assert "error" not in await other.result(f"{model}:1")


async def test_runs_take_room_by_their_rank_where_an_engine_says_how_much_there_is(
    tmp_path: Path,
) -> None:
    engine = FakeEngine()
    engine.ready = replace(engine.ready, run_room=200, rank_bytes=10)
    async with served(tmp_path, engine) as api:
        session = await api.session()
        asked = await asyncio.gather(*(_ask_for_model(api, session, n) for n in range(12)))
        answers = await asyncio.gather(*map(api.result, asked))
        assert all("error" not in answer for answer in answers)
        assert engine.most_runs == 2, "of rank 8, 80 bytes each"
        larger_than_all = await api.model(session, 12, rank=64)
        await api.step(larger_than_all, 1)
        assert "error" not in await api.result(f"{larger_than_all}:1")
        assert list(engine.current.runs) == [larger_than_all]


async def test_a_run_that_cannot_be_written_down_keeps_nobody_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = _full_engine()
    async with served(tmp_path, engine, scheduling=FEW) as api:
        session = await api.session()
        bad = await api.model(session, 0)
        engine.unsavable.add(bad)
        with caplog.at_level(logging.CRITICAL):
            for number in range(1, 20):
                await api.model(session, number)
        assert engine.most_runs <= FEW.resident_runs
        await api.step(bad, 1)
        assert "error" not in await api.result(f"{bad}:1")


async def test_where_no_run_can_be_written_down_they_leave_and_are_rebuilt_from_their_logs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = _full_engine()
    async with served(tmp_path, engine, scheduling=FEW) as api:
        session = await api.session()
        models = [await api.model(session, number, seed=number) for number in range(4)]
        engine.unsavable.update(models)
        for model in models:
            await api.step(model, 1)
            await api.result(f"{model}:1")
            _try_in_vain(_run(api, model))
        with caplog.at_level(logging.CRITICAL):
            await api.model(session, 9)
            for model in models:
                await api.step(model, 2, rate=0.2)
                assert "error" not in await api.result(f"{model}:2")
                assert api.applied(model) == ["step:0.1", "step:0.2"]
                for each in api.core.runs:
                    _try_in_vain(each)


async def test_a_failed_creation_takes_no_place_and_fails_what_was_sent_behind_it(
    tmp_path: Path,
) -> None:
    engine = FakeEngine()
    engine.max_runs = 0
    async with served(tmp_path, engine, scheduling=FEW) as api:
        session = await api.session()
        asked = [await _ask_for_model(api, session, number) for number in range(12)]
        model = asked[0].rpartition(":")[0]
        await api.step(model, 1)
        for request_id in asked:
            assert "limit" in (await api.result(request_id))["error"]
        behind = await api.result(f"{model}:1")
        assert behind["category"] == "user"
        assert "its creation failed" in behind["error"]
        for run in api.core.runs:
            while run.place:
                await run.progress()
    engine.max_runs = 100
    async with served(tmp_path, engine, scheduling=FEW) as api:
        await api.step(model, 2)
        assert "its creation failed" in (await api.result(f"{model}:2"))["error"]
        await api.model(session, 99)


async def test_a_run_that_broke_gives_its_place_back(tmp_path: Path) -> None:
    engine = _full_engine()
    async with served(tmp_path, engine, scheduling=FEW) as api:
        session = await api.session()
        models = [await api.model(session, number) for number in range(4)]
        for model in models:
            _run(api, model).break_down("the test says so")
        fresh = await api.model(session, 9)
        await api.step(fresh, 1)
        assert "error" not in await api.result(f"{fresh}:1")


async def test_a_run_the_engine_does_not_have_is_rebuilt_from_its_log(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        await api.step(model, 1)
        await api.result(f"{model}:1")
        del api.engine.current.runs[model]
        await api.step(model, 2, rate=0.2)
        assert "error" not in await api.result(f"{model}:2")
        assert api.applied(model) == ["step:0.1", "step:0.2"]


async def test_runs_that_wait_for_a_missing_number_keep_nobody_out(tmp_path: Path) -> None:
    engine, slow = _full_engine(), replace(QUICK, gap_timeout_s=3600.0)
    async with served(tmp_path, engine, scheduling=FEW, timings=slow) as api:
        session = await api.session()
        for number in range(4):
            await api.forward(await api.model(session, number), 2)
        other = api.as_tenant("tml-bob")
        model = await other.model(await other.session())
        await other.step(model, 1)
        assert "error" not in await other.result(f"{model}:1")


async def test_runs_that_are_never_idle_take_turns_with_those_that_wait(tmp_path: Path) -> None:
    engine, quick = _full_engine(), replace(QUICK, run_turn_s=0.0)
    engine.gate = asyncio.Event()
    async with served(tmp_path, engine, scheduling=FEW, timings=quick) as api:
        session = await api.session()
        asked = [await _ask_for_model(api, session, number) for number in range(4)]
        models = [each.rpartition(":")[0] for each in asked]
        for seq in range(1, 200):
            for model in models:
                await api.step(model, seq)
        other = api.as_tenant("tml-bob")
        wanted = await _ask_for_model(other, await other.session(), 0)
        engine.gate.set()
        await other.result(wanted)
        assert any(_run(api, model).log.unfinished() for model in models)
        for model in models:
            await api.result(f"{model}:199")
            assert _counted(engine, api, model) == 199


def _counted(engine: FakeEngine, api: Api, model: str) -> int:
    done = _run(api, model).log
    assert not done.unfinished()
    return done.begun_through


async def test_who_holds_many_places_does_not_get_the_few_of_another(tmp_path: Path) -> None:
    engine = _full_engine()
    async with served(tmp_path, engine, scheduling=FEW) as api:
        other = api.as_tenant("tml-bob")
        quiet = await other.model(await other.session())
        session = await api.session()
        asked = await asyncio.gather(*(_ask_for_model(api, session, n) for n in range(32)))
        await asyncio.gather(*map(api.result, asked))
        assert _run(api, quiet).place
        assert sum(_is_drop(command, quiet) for command in engine.current.seen) == 0


def _is_drop(command: Any, model: str) -> bool:
    return type(command).__name__ == "DropRun" and bool(command.run == model)


async def test_what_the_engine_died_of_is_not_kept_waiting_by_others(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        session = await api.session()
        unlucky, busy = await api.model(session, 0), await api.model(session, 1)
        await api.forward(unlucky, 1, loss="die")
        for seq in range(1, 300):
            await api.step(busy, seq)
        await api.result(f"{unlucky}:1")
        assert _run(api, busy).log.unfinished()
        await api.result(f"{busy}:299")


def _try_in_vain(run: Run) -> None:
    """As if it had twice been asked to leave, long ago, and could not be written down."""
    for _ in range(2):
        run.stay(-1000.0)
