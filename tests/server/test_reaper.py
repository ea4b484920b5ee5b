"""Promises of what time ends: weights go when nobody can ask for them, and never before."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from support.served import QUICK, Api, served

FORGETFUL = dataclasses.replace(QUICK, sampler_retention_s=0.0)


async def save(api: Api, model: str, seq: int, **more: Any) -> Any:
    body = {"model_id": model, "seq_id": seq, **more}
    answer = await api.post("save_weights_for_sampler", body)
    return await api.result(answer["request_id"])


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
        await api.core.reaper.tick()
        assert len(api.core.weights.names()) == 2
        assert isinstance(await sample(api, sampler, 0), bytes)
        await api.send("POST", f"sessions/{session}/finish", json={"reason": {"type": "success"}})
        await api.core.reaper.tick()
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
        await api.core.reaper.tick()
        assert isinstance(await sample(api, sampler, 0), bytes)
        await api.send("POST", f"sessions/{session}/finish", json={"reason": {"type": "success"}})
        await api.core.reaper.tick()
        assert api.core.weights.names() == set()
