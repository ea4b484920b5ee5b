"""A home may hold runs of models that this server does not serve: they wait, others go on."""

from __future__ import annotations

from pathlib import Path

from support.fake_engine import FakeEngine
from support.served import MODEL, served


async def test_runs_of_a_model_no_longer_served_do_not_stop_the_others(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        old = await api.model(await api.session())
        await api.forward(old, 1, first=1)
        await api.result(f"{old}:1")
    async with served(tmp_path, FakeEngine(), model="fake/other") as api:
        body = {
            "session_id": await api.session(),
            "model_seq_id": 0,
            "base_model": "fake/other",
            "lora_config": {"rank": 8},
        }
        answer = await api.post("create_model", body)
        await api.result(answer["request_id"])
        await api.forward(answer["model_id"], 1, first=1)
        await api.result(f"{answer['model_id']}:1")


async def test_what_waits_for_a_model_no_longer_served_says_so(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        old = await api.model(await api.session())
    async with served(tmp_path, FakeEngine(), model="fake/other") as api:
        await api.forward(old, 1, first=1)
        waiting = await api.poll(f"{old}:1")
        assert waiting.status_code == 408
        assert MODEL in waiting.json()["queue_state_reason"]
