"""Weights go to a sampler at once and to the disk behind it; nothing that was said is lost."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from support.fake_engine import FakeEngine
from support.served import Api, served
from tinkex.server.settings import Scheduling
from tinkex.server.storage.database import operations
from tinkex.wire.protobuf import decode_sample_response


def _slow_disk() -> FakeEngine:
    engine = FakeEngine()
    engine.disk = asyncio.Event()
    return engine


def _written(engine: FakeEngine) -> None:
    assert engine.disk is not None
    engine.disk.set()


async def _save(api: Api, model: str, seq: int, number: int = 0) -> str:
    body = {"model_id": model, "seq_id": seq, "sampling_session_seq_id": number}
    answer = await api.post("save_weights_for_sampler", body)
    return str((await api.result(answer["request_id"]))["sampling_session_id"])


async def _sample(api: Api, sampler: str, seq: int = 0) -> Any:
    """How many things were applied to the weights that made it; or the error."""
    chunks = [{"type": "encoded_text", "tokens": [1, 2, 3]}]
    body = {
        "sampling_session_id": sampler,
        "seq_id": seq,
        "num_samples": 1,
        "prompt": {"chunks": chunks},
        "sampling_params": {"max_tokens": 2},
        "prompt_logprobs": False,
        "type": "sample",
    }
    answer = await api.post("asample", body)
    found = await api.result(answer["request_id"])
    if isinstance(found, dict):
        return found
    response = decode_sample_response(found, answer["sample_sequence_ids"])
    return int(response.sequences[0].tokens[0]), response.weights


async def _trained(api: Api, steps: int = 1) -> str:
    model = await api.model(await api.session())
    for seq in range(1, steps + 1):
        await api.step(model, seq)
        await api.result(f"{model}:{seq}")
    return model


async def _state(api: Api, request_id: str) -> str:
    row = await api.core.store.read(lambda db: operations.get(db, request_id))
    assert row is not None
    return row.state


def _folders(home: Path) -> list[str]:
    return [entry.name for entry in (home / "weights").iterdir() if "tmp" not in entry.name]


async def test_a_sampler_answers_before_its_weights_are_on_disk_and_training_goes_on(
    tmp_path: Path,
) -> None:
    engine = _slow_disk()
    async with served(tmp_path, engine) as api:
        model = await _trained(api)
        sampler = await _save(api, model, 2)
        await api.step(model, 3)
        assert "error" not in await api.result(f"{model}:3")
        size, weights = await _sample(api, sampler)
        assert (size, weights.digest) == (2, None), "of the moment it was saved at, not yet hashed"
        assert await _state(api, f"{model}:2") == "accepted"
        assert _folders(tmp_path) == []
        _written(engine)
        while await _state(api, f"{model}:2") != "done":
            await asyncio.sleep(0.01)
        size, weights = await _sample(api, sampler, 1)
        assert size == 2
        assert weights.digest is not None
        assert len(_folders(tmp_path)) == 1


async def test_a_run_goes_on_while_its_state_is_being_written(tmp_path: Path) -> None:
    engine = _slow_disk()
    async with served(tmp_path, engine) as api:
        model = await _trained(api)
        await api.post("save_weights", {"model_id": model, "seq_id": 2, "path": "one"})
        await api.step(model, 3)
        assert "error" not in await api.result(f"{model}:3")
        assert (await api.poll(f"{model}:2")).status_code == 408, "told only once it is on disk"
        _written(engine)
        assert (await api.result(f"{model}:2"))["path"].endswith("/weights/one")


async def test_weights_lost_with_the_engine_are_made_again_and_samples_wait_for_them(
    tmp_path: Path,
) -> None:
    engine = _slow_disk()
    async with served(tmp_path, engine) as api:
        model = await _trained(api)
        sampler = await _save(api, model, 2)
        await api.step(model, 3)
        await api.result(f"{model}:3")
        engine.current.die()
        _written(engine)
        size, _ = await _sample(api, sampler)
        assert size == 2, "as they were, though the run has gone on since"
        assert len(engine.workers) == 2
        await api.step(model, 4)
        await api.result(f"{model}:4")
        assert api.applied(model) == ["step:0.1"] * 3


async def test_weights_lost_with_the_server_are_made_again_by_the_next_one(tmp_path: Path) -> None:
    async with served(tmp_path, _slow_disk()) as api:
        model = await _trained(api)
        sampler = await _save(api, model, 2)
        await api.step(model, 3)
        await api.result(f"{model}:3")
    assert _folders(tmp_path) == []
    async with served(tmp_path) as api:
        size, _ = await _sample(api, sampler)
        assert size == 2
        assert (await api.result(f"{model}:2"))["sampling_session_id"] == sampler
        await api.step(model, 4)
        await api.result(f"{model}:4")
        assert api.applied(model) == ["step:0.1"] * 3


async def test_a_snapshot_waits_for_the_weights_it_would_make_unrepeatable(tmp_path: Path) -> None:
    engine, often = _slow_disk(), Scheduling(snapshot_steps=1)
    async with served(tmp_path, engine, scheduling=often) as api:
        model = await _trained(api, 0)
        sampler = await _save(api, model, 1)
        for seq in (2, 3):
            await api.step(model, seq)
            await api.result(f"{model}:{seq}")
        run = api.core.runs.find(model)
        assert run is not None
        assert run.snapshot is None
        engine.current.die()
        _written(engine)
        assert (await _sample(api, sampler))[0] == 1


async def test_weights_that_cannot_be_written_last_as_long_as_the_engine_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    engine = FakeEngine()
    async with served(tmp_path, engine) as api:
        model = await _trained(api)
        engine.unsavable.add(model)
        sampler = await _save(api, model, 2)
        assert (await _sample(api, sampler))[0] == 2
        assert f"weights of {sampler} could not be written" in caplog.text
        engine.current.die()
        await api.step(model, 3)
        assert "error" not in await api.result(f"{model}:3")
        assert "could not be written to the disk" in (await _sample(api, sampler, 1))["error"]


async def test_a_number_used_for_other_weights_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        model = await _trained(api)
        await _save(api, model, 2, number=7)
        body = {"model_id": model, "seq_id": 3, "sampling_session_seq_id": 7}
        await api.post("save_weights_for_sampler", body)
        refused = await api.result(f"{model}:3")
        assert refused["category"] == "user"
        assert "sampling_session_seq_id 7 was already used" in refused["error"]
