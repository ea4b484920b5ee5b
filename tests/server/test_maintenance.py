"""Promises of what time ends: weights go when nobody can ask for them, and never before."""

from __future__ import annotations

import dataclasses
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from support.served import QUICK, Api, served
from tinkex.server.clock import SystemClock
from tinkex.server.listening import Listening
from tinkex.server.maintenance import Duty, Maintenance
from tinkex.server.training import snapshots

FORGETFUL = dataclasses.replace(QUICK, sampler_retention_s=0.0)


async def save(api: Api, model: str, seq: int, **more: Any) -> Any:
    body = {"model_id": model, "seq_id": seq, **more}
    answer = await api.post("save_weights_for_sampler", body)
    result = await api.result(answer["request_id"])
    await api.on_disk()
    return result


def age(api: Api) -> None:
    """Let every folder look old: young ones may be about to get their name."""
    for name in api.core.weights.names():
        os.utime(api.core.weights.path(name), (1.0, 1.0))


async def sample(api: Api, sampler: str, number: int) -> Any:
    body = {
        "num_samples": 1,
        "prompt": {"chunks": [{"tokens": [1, 2], "type": "encoded_text"}]},
        "sampling_params": {"max_tokens": 1},
        "sampling_session_id": sampler,
        "seq_id": number,
    }
    return await api.result((await api.post("asample", body))["request_id"])


async def test_nameless_weights_live_with_their_session_and_named_ones_for_ever(
    tmp_path: Path,
) -> None:
    async with served(tmp_path / "home", timings=FORGETFUL) as api:
        session = await api.session()
        model = await api.model(session)
        sampler = (await save(api, model, 1, sampling_session_seq_id=0))["sampling_session_id"]
        await save(api, model, 2, path="named")
        age(api)
        await api.core.maintenance.tick()
        assert len(api.core.weights.names()) == 2
        assert isinstance(await sample(api, sampler, 0), bytes)
        await api.send("POST", f"sessions/{session}/finish", json={"reason": {"type": "success"}})
        await api.core.maintenance.tick()
        assert len(api.core.weights.names()) == 1
        assert "session ended" in (await sample(api, sampler, 1))["error"]
        (kept,) = (await api.send("GET", "checkpoints")).json()["checkpoints"]
        assert kept["checkpoint_id"] == "sampler_weights/named"


async def test_a_deleted_checkpoint_gives_its_bytes_back_once_no_sampler_needs_them(
    tmp_path: Path,
) -> None:
    async with served(tmp_path / "home", timings=FORGETFUL) as api:
        session = await api.session()
        model = await api.model(session)
        path = (await save(api, model, 1, path="named"))["path"]
        body = {"session_id": session, "sampling_session_seq_id": 0, "model_path": path}
        sampler = (await api.post("create_sampling_session", body))["sampling_session_id"]
        await api.send("DELETE", f"training_runs/{model}/checkpoints/sampler_weights/named")
        age(api)
        await api.core.maintenance.tick()
        assert isinstance(await sample(api, sampler, 0), bytes)
        await api.send("POST", f"sessions/{session}/finish", json={"reason": {"type": "success"}})
        await api.core.maintenance.tick()
        assert api.core.weights.names() == set()


async def test_a_part_that_fails_is_logged_and_keeps_no_other_from_its_work(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done: list[str] = []
    duties: dict[str, Duty] = {"the first": _broken, "the second": lambda: done.append("it")}
    await Maintenance(Listening(SystemClock()), duties).tick()
    assert done == ["it"]
    assert "maintenance failed on the first" in caplog.text


async def _broken() -> None:
    raise RuntimeError("broken")


async def test_a_run_whose_end_cannot_be_written_down_stays_counted_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path) as api:
        session = await api.session()
        model = await api.model(session)
        await api.post(f"sessions/{session}/finish", {"reason": {"type": "success"}})
        with monkeypatch.context() as full:
            full.setattr(snapshots.runs_table, "end", _disk_full)
            await api.core.maintenance.tick()
        assert [run.model_id for run in api.core.runs] == [model]
        assert model in api.engine.current.runs
        await api.core.maintenance.tick()
        assert not list(api.core.runs)
        assert model not in api.engine.current.runs


def _disk_full(*_: object) -> None:
    raise sqlite3.OperationalError("database or disk is full")
