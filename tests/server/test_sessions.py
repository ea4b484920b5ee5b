"""Sessions: opened once, alive by signs of life, ended once, never taking a checkpoint along."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from support.jumping_clock import JumpingClock
from support.served import QUICK, served
from tinkex.server.settings import Limits


async def test_the_same_idempotency_key_opens_one_session(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        keys = [{"x-idempotency-key": key} for key in ("a", "a", "b")]
        answers = [await api.send("POST", "create_session", json={}, headers=key) for key in keys]
        ids = [answer.json()["session_id"] for answer in answers]
        assert ids[0] == ids[1] != ids[2]
        eve = api.as_tenant("tml-eve")
        theirs = await eve.send("POST", "create_session", json={}, headers=keys[0])
        assert theirs.json()["session_id"] not in ids


async def test_a_long_idempotency_key_is_refused_by_name(tmp_path: Path) -> None:
    """An index of PostgreSQL does not take it, and told to come again clients would for ever."""
    async with served(tmp_path) as api:
        headers = {"x-idempotency-key": "a" * 257}
        answer = await api.send("POST", "create_session", json={}, headers=headers)
        assert answer.status_code == 422
        assert answer.json()["detail"] == "X-Idempotency-Key has 257 characters; the limit is 256"


async def test_a_quota_of_sessions_holds_for_many_that_come_at_once(tmp_path: Path) -> None:
    limits = replace(Limits(), sessions_per_tenant=3)
    async with served(tmp_path, limits=limits) as api:
        asking = [api.send("POST", "create_session", json={}) for _ in range(20)]
        answers = [answer.status_code for answer in await asyncio.gather(*asking)]
        assert sorted(answers) == [200] * 3 + [429] * 17


async def test_a_finished_session_is_gone_but_its_results_and_checkpoints_stay(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as api:
        session = await api.session()
        await api.post("session_heartbeat", {"session_id": session})
        model = await api.model(session)
        await api.forward(model, 1)
        await api.post("save_weights", {"model_id": model, "seq_id": 2, "path": "kept"})
        path = (await api.result(f"{model}:2"))["path"]
        await api.post(
            f"sessions/{session}/finish", {"reason": {"type": "success"}, "detail": None}
        )
        await api.post("session_heartbeat", {"session_id": session}, expect=410)
        await api.step(model, 3, expect=410)
        await api.core.maintenance.tick()
        assert api.core.runs.find(model) is None
        assert model not in api.engine.current.runs
        assert await api.result(f"{model}:1")
        fresh = {"session_id": await api.session(), "model_seq_id": 0, "path": path}
        made = await api.post("load_weights", {**fresh, "optimizer": True})
        assert (await api.result(made["request_id"]))["path"] == path
        assert api.engine.current.runs[made["model_id"]][1:] == ["forward:1"]


async def test_a_silent_session_expires_and_a_lively_one_does_not(tmp_path: Path) -> None:
    async with served(tmp_path, timings=replace(QUICK, session_expiry_s=0.0)) as api:
        session = await api.session()
        await api.core.maintenance.tick()
        await api.post("session_heartbeat", {"session_id": session}, expect=410)
    async with served(tmp_path) as api:
        session = await api.session()
        await api.core.maintenance.tick()
        await api.post("session_heartbeat", {"session_id": session})


async def test_a_run_made_from_a_checkpoint_survives_the_checkpoints_end(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        session = await api.session()
        model = await api.model(session)
        await api.forward(model, 1)
        await api.post("save_weights", {"model_id": model, "seq_id": 2, "path": "source"})
        path = (await api.result(f"{model}:2"))["path"]
        made = await api.post(
            "load_weights",
            {"session_id": session, "model_seq_id": 1, "path": path, "optimizer": True},
        )
        await api.result(made["request_id"])
        run = api.core.runs.find(made["model_id"])
        assert run is not None
        await api.core.checkpoints.delete(run.tenant, path)
        api.engine.current.die()
        await api.step(made["model_id"], 1)
        await api.result(f"{made['model_id']}:1")
        assert api.applied(made["model_id"]) == ["forward:1", "step:0.1"]


async def test_old_results_expire_and_fetched_ones_sooner(tmp_path: Path) -> None:
    timings = replace(QUICK, fetched_result_retention_s=-1.0)
    async with served(tmp_path, timings=timings) as api:
        model = await api.model(await api.session())
        await api.forward(model, 1, length=30_000)
        await api.result(f"{model}:1")
        for _ in range(2):
            await api.core.maintenance.tick()
        api.core.promises.drop(f"{model}:1")
        assert (await api.poll(f"{model}:1")).status_code == 410


async def test_the_records_of_a_run_go_long_after_it(tmp_path: Path) -> None:
    timings = replace(QUICK, record_retention_s=-10.0, result_retention_s=-10.0)
    async with served(tmp_path, timings=timings) as api:
        session = await api.session()
        model = await api.model(session)
        await api.forward(model, 1)
        await api.result(f"{model}:1")
        await api.core.maintenance.tick()
        assert (await api.poll(f"{model}:1")).status_code in (200, 410)
        await api.post(f"sessions/{session}/finish", {"reason": {"type": "success"}})
        await api.core.maintenance.tick()
        api.core.promises.drop(f"{model}:1")
        assert (await api.poll(f"{model}:1")).status_code == 404


@pytest.mark.parametrize("jump", [1e9, -1e9])
async def test_a_jump_of_the_clock_ends_no_session_and_no_run(tmp_path: Path, jump: float) -> None:
    async with served(tmp_path) as api:
        clock = api.core.listening._clock = JumpingClock()
        model = await api.model(await api.session())
        await api.forward(model, 1)
        clock.wall = jump
        await api.core.maintenance.tick()
        clock.awake = 1e9  # a process that was stopped for years
        await api.core.maintenance.tick()
        await api.step(model, 2)
        await api.result(f"{model}:2")
        assert api.applied(model) == ["forward:1", "step:0.1"]


async def test_silence_that_was_listened_to_ends_a_session(tmp_path: Path) -> None:
    async with served(tmp_path, timings=replace(QUICK, session_expiry_s=100.0)) as api:
        clock = api.core.listening._clock = JumpingClock()
        session = await api.session()
        for _ in range(3):
            clock.awake += 50.0
            await api.core.maintenance.tick()
        await api.post("session_heartbeat", {"session_id": session}, expect=410)


async def test_it_is_known_for_how_long_nothing_was_heard_of_a_session(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        clock = api.core.listening._clock = JumpingClock()
        session = await api.session()
        clock.awake += 50.0
        await api.core.maintenance.tick()
        assert 40.0 < api.core.sessions.silent_s(session) < 60.0
        await api.post("session_heartbeat", {"session_id": session})
        assert api.core.sessions.silent_s(session) < 10.0
