"""Order, once, replay and failure, seen by what reaches the engine."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from support.fake_engine import FakeEngine
from support.served import QUICK, Api, served
from tinkex.server.settings import Scheduling


async def test_chunks_take_effect_in_order_though_the_first_arrives_last(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        for seq in (3, 2, 4):
            await api.forward(model, seq, first=seq)
        await api.forward(model, 1, first=1)
        await api.step(model, 5)
        await api.result(f"{model}:5")
        assert api.applied(model) == [
            "forward:1",
            "forward:2",
            "forward:3",
            "forward:4",
            "step:0.1",
        ]


async def test_a_repeated_submission_is_applied_once(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        answers = await asyncio.gather(*(api.forward(model, 1) for _ in range(5)))
        assert len({answer["request_id"] for answer in answers}) == 1
        first = await api.result(f"{model}:1")
        await api.forward(model, 1)
        assert await api.result(f"{model}:1") == first
        assert api.applied(model) == ["forward:1"]


async def test_a_number_reused_for_another_body_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        await api.forward(model, 1, first=1)
        refused = await api.forward(model, 1, first=2, expect=422)
        assert "seq_id 1" in refused["detail"]
        await api.step(model, 1, expect=422)
        await api.result(f"{model}:1")
        assert api.applied(model) == ["forward:1"]


async def test_a_gap_is_skipped_after_a_while_and_the_late_one_fails(tmp_path: Path) -> None:
    async with served(tmp_path, timings=replace(QUICK, poll_hold_s=0.05)) as api:
        model = await api.model(await api.session())
        await api.forward(model, 2, first=2)
        waiting = await api.poll(f"{model}:2")
        assert waiting.status_code == 408
        assert "seq_id 1" in waiting.json()["queue_state_reason"]
        await api.result(f"{model}:2")
        late = await api.forward(model, 1, first=1)
        failed = await api.result(late["request_id"])
        assert failed["category"] == "user"
        assert "seq_id 1" in failed["error"]
        assert api.applied(model) == ["forward:2"]


async def test_what_is_missing_before_a_step_is_waited_for(tmp_path: Path) -> None:
    async with served(tmp_path, timings=replace(QUICK, gap_grace_s=60.0)) as api:
        model = await api.model(await api.session())
        await api.step(model, 2)
        assert api.applied(model) == []
        await api.forward(model, 1, first=1)
        await api.result(f"{model}:2")
        assert api.applied(model) == ["forward:1", "step:0.1"]


async def test_what_is_missing_before_a_step_is_waited_for_only_shortly(tmp_path: Path) -> None:
    """A step is never part of a chunked call: the longer wait for chunks is not for it."""
    timings = replace(QUICK, gap_timeout_s=3600.0, gap_grace_s=0.05)
    async with served(tmp_path, timings=timings) as api:
        model = await api.model(await api.session())
        await api.step(model, 2)
        await api.result(f"{model}:2")
        assert api.applied(model) == ["step:0.1"]


async def test_engine_errors_are_failed_futures_and_later_operations_still_run(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        await api.forward(model, 1, first=1, loss="user_error")
        await api.forward(model, 2, first=2, loss="server_error")
        await api.forward(model, 3, first=3)
        assert (await api.result(f"{model}:1")) == {
            "error": "told to fail on forward:1",
            "category": "user",
        }
        assert (await api.result(f"{model}:2"))["category"] == "server"
        await api.result(f"{model}:3")
        assert api.applied(model) == ["forward:3"]


async def test_a_dead_engine_is_replaced_and_the_run_replayed(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        for seq in (1, 2, 3):
            await api.forward(model, seq, first=seq)
            await api.result(f"{model}:{seq}")
        api.engine.current.die()
        await api.forward(model, 4, first=4)
        await api.step(model, 5)
        await api.result(f"{model}:5")
        assert len(api.engine.workers) == 2
        assert api.applied(model) == [
            "forward:1",
            "forward:2",
            "forward:3",
            "forward:4",
            "step:0.1",
        ]


async def test_a_snapshot_spares_the_replay_and_drops_the_bodies(tmp_path: Path) -> None:
    async with served(tmp_path, scheduling=Scheduling(snapshot_steps=1)) as api:
        model = await api.model(await api.session())
        await api.forward(model, 1, first=1)
        await api.step(model, 2)
        await api.result(f"{model}:2")
        run = await api.core.runs.owned("key-" + api.core.runs.find(model).tenant[4:], model)
        while run.snapshot is None:
            await run.progress()
        assert run.log.base == 2
        assert run.log.entries == {}
        api.engine.current.die()
        await api.forward(model, 3, first=3)
        await api.result(f"{model}:3")
        assert api.applied(model) == ["forward:1", "step:0.1", "forward:3"]
        assert (
            sum(type(each).__name__ == "ForwardBackward" for each in api.engine.current.seen) == 1
        )


async def test_an_operation_that_kills_the_engine_again_and_again_fails_alone(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as api:
        session = await api.session()
        model, other = await api.model(session, 0), await api.model(session, 1)
        await api.forward(model, 1, first=1, loss="poison")
        await api.forward(other, 1, first=7)
        await api.step(model, 2)
        failed = await api.result(f"{model}:1")
        assert failed["category"] == "server"
        assert "died 3 times" in failed["error"]
        await api.result(f"{other}:1")
        await api.result(f"{model}:2")
        assert api.applied(model) == ["step:0.1"]


async def test_work_in_flight_when_the_engine_dies_is_sent_again(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        for seq in range(1, 6):
            await api.forward(model, seq, first=seq, loss="die" if seq == 3 else "cross_entropy")
        await api.result(f"{model}:5")
        assert api.applied(model) == [f"forward:{seq}" for seq in range(1, 6)]


async def test_a_waiting_poll_says_why(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.starts_to_fail = 1000
    async with served(tmp_path, engine) as api:
        body = {
            "session_id": await api.session(),
            "model_seq_id": 0,
            "base_model": "fake/model",
            "lora_config": {"rank": 8},
        }
        created = await api.post("create_model", body)
        waiting = await api.poll(created["request_id"])
        assert waiting.status_code == 408
        assert waiting.json()["queue_state"] == "paused_capacity"
        assert "told not to start" in waiting.json()["queue_state_reason"]
        assert (await api.send("GET", "healthz")).status_code == 503


async def test_a_server_takes_up_where_the_last_one_stopped(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        await api.forward(model, 1, first=1)
        first = await api.result(f"{model}:1")
        api.engine.gate = asyncio.Event()
        await api.forward(model, 2, first=2, length=30_000)
        await api.step(model, 3)
    async with served(tmp_path) as api:
        assert await api.result(f"{model}:1") == first
        await api.result(f"{model}:3")
        assert api.applied(model) == ["forward:1", "forward:2", "step:0.1"]


async def test_idle_runs_leave_the_engine_and_come_back_unchanged(tmp_path: Path) -> None:
    async with served(tmp_path, scheduling=Scheduling(resident_runs=2)) as api:
        session = await api.session()
        models = [await api.model(session, number) for number in range(4)]
        for model in models:
            await api.forward(model, 1, first=1)
            await api.result(f"{model}:1")
        await api.forward(models[0], 2, first=2)
        await api.result(f"{models[0]}:2")
        assert api.applied(models[0]) == ["forward:1", "forward:2"]
        assert len(api.engine.current.runs) <= 2


async def test_each_tenants_turn_comes_though_another_queued_first(tmp_path: Path) -> None:
    scheduling = Scheduling(operations_in_flight=1, operations_per_run=1)
    async with served(tmp_path, scheduling=scheduling) as api:
        bob = Api(api.client, api.core, api.engine, "tml-bob")
        mine, theirs = await api.model(await api.session()), await bob.model(await bob.session())
        api.engine.gate = asyncio.Event()
        for seq in range(1, 11):
            await api.forward(mine, seq, first=1)
        await bob.forward(theirs, 1, first=2)
        api.engine.gate.set()
        await api.result(f"{mine}:10")
        order = [
            each.run for each in api.engine.current.seen if type(each).__name__ == "ForwardBackward"
        ]
        assert order.index(theirs) <= 2


async def test_a_run_that_cannot_be_rebuilt_fails_its_operations_and_nobody_elses(
    tmp_path: Path,
) -> None:
    no_way_back = Scheduling(snapshot_steps=1, fallback_payload_bytes=1)
    async with served(tmp_path, scheduling=no_way_back) as api:
        session = await api.session()
        model, other = await api.model(session, 0), await api.model(session, 1)
        await api.step(model, 1)
        await api.result(f"{model}:1")
        run = api.core.runs.find(model)
        assert run is not None
        while run.snapshot is None:
            await run.progress()
        folder = tmp_path / "snapshots" / run.snapshot.folder
        (folder / "adapter_model.safetensors").unlink()
        api.engine.current.die()
        await api.step(model, 2)
        await api.step(other, 1)
        failed = await api.result(f"{model}:2")
        assert failed["category"] == "server"
        assert "cannot continue" in failed["error"]
        await api.step(model, 3)
        assert (await api.result(f"{model}:3"))["category"] == "server"
        assert "metrics" in await api.result(f"{other}:1")
