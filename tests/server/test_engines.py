"""Engines on demand: looking around needs none, work wakes the one it needs."""

from __future__ import annotations

from pathlib import Path

from support.served import served


async def test_looking_around_wakes_no_engine(tmp_path: Path) -> None:
    async with served(tmp_path, engines_on_demand=True) as api:
        await api.session()
        for path in ("healthz", "get_server_capabilities", "checkpoints", "training_runs"):
            assert (await api.send("GET", path)).status_code == 200, path
        assert all(engine.is_asleep for engine in api.core.engines)


async def test_training_wakes_the_engine(tmp_path: Path) -> None:
    async with served(tmp_path, engines_on_demand=True) as api:
        model = await api.model(await api.session())
        await api.forward(model, 1)
        await api.result(f"{model}:1")
        assert not any(engine.is_asleep for engine in api.core.engines)


async def test_work_left_by_an_earlier_life_wakes_the_engine(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
    async with served(tmp_path, engines_on_demand=True) as api:
        await api.forward(model, 1)
        await api.result(f"{model}:1")
        assert api.applied(model)


async def test_sampling_wakes_the_engine(tmp_path: Path) -> None:
    async with served(tmp_path, engines_on_demand=True) as api:
        session = await api.session()
        body = {"session_id": session, "sampling_session_seq_id": 0, "base_model": "fake/model"}
        sampler = (await api.post("create_sampling_session", body))["sampling_session_id"]
        request = {
            "num_samples": 1,
            "prompt": {"chunks": [{"tokens": [1, 2], "type": "encoded_text"}]},
            "sampling_params": {"max_tokens": 2},
            "sampling_session_id": sampler,
            "seq_id": 0,
        }
        answer = await api.post("asample", request)
        await api.result(answer["request_id"])
        assert not any(engine.is_asleep for engine in api.core.engines)
