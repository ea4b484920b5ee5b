"""Runs can be told apart, named, stopped and deleted, by their owners only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.fake_engine import FakeEngine
from support.served import Api, served
from tinkex.server.storage.database.migrations import MIGRATIONS, migrate
from tinkex.server.storage.database.sqlite import connect


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with served(tmp_path / "home") as api:
        yield api


@pytest.fixture
async def model(api: Api) -> str:
    return await api.model(await api.session())


async def shown(api: Api, model: str) -> dict[str, Any]:
    found: dict[str, Any] = (await api.send("GET", f"training_runs/{model}")).json()
    return found


async def change(
    api: Api, verb: str, model: str, part: str = "", body: Any = None, expect: int = 200
) -> Any:
    response = await api.send(verb, f"training_runs/{model}{part}", json=body)
    assert response.status_code == expect, response.text
    return response.json()


async def test_a_run_says_how_far_it_is(api: Api, model: str) -> None:
    await api.result((await api.forward(model, 1, length=5))["request_id"])
    await api.result((await api.step(model, 2))["request_id"])
    await api.result((await api.forward(model, 3, length=7, forward_only=True))["request_id"])
    run = await shown(api, model)
    assert (run["step"], run["tokens"], run["state"]) == (1, 5, "live")
    assert run["created_at"] <= run["last_request_time"]
    (listed,) = (await api.send("GET", "training_runs")).json()["training_runs"]
    assert listed == run


async def test_a_checkpoint_says_its_model_and_step(api: Api, model: str) -> None:
    await api.result((await api.step(model, 1))["request_id"])
    body = {"model_id": model, "path": "a", "seq_id": 2}
    await api.result((await api.post("save_weights", body))["request_id"])
    (saved,) = (await api.send("GET", "checkpoints")).json()["checkpoints"]
    assert saved["base_model"] == (await shown(api, model))["base_model"]
    assert "step" in saved


async def test_a_run_is_named_by_its_owner_or_else_by_its_script(api: Api) -> None:
    said = {"tags": [], "user_metadata": {}, "display_name": "sweep"}
    session = (await api.post("create_session", said))["session_id"]
    model = await api.model(session)
    assert (await shown(api, model))["name"] == "sweep"
    await change(api, "PUT", model, "/name", {"name": "lr 3e-4"})
    await change(api, "PUT", model, "/note", {"note": "the good one"})
    run = await shown(api, model)
    assert (run["name"], run["note"]) == ("lr 3e-4", "the good one")
    await change(api, "PUT", model, "/name", {"name": None})
    assert (await shown(api, model))["name"] == "sweep"


async def ended(api: Api, model: str) -> None:
    """Tick once a stopped run has left the engine."""
    live = api.core.runs.find(model)
    while live is not None and live.active:
        await asyncio.sleep(0)
    await api.core.maintenance.tick()


async def test_a_name_that_could_drive_a_terminal_is_none(api: Api) -> None:
    said = {"tags": [], "user_metadata": {}, "display_name": "\x1b[2J"}
    session = (await api.post("create_session", said))["session_id"]
    assert (await shown(api, await api.model(session)))["name"] is None


@pytest.mark.parametrize("name", ["", "  ", "two\nlines", "x" * 201, 7])
async def test_a_bad_name_is_refused_and_changes_nothing(api: Api, model: str, name: Any) -> None:
    await change(api, "PUT", model, "/name", {"name": "before"})
    refused = await change(api, "PUT", model, "/name", {"name": name}, expect=422)
    assert "name" in refused["detail"]
    assert (await shown(api, model))["name"] == "before"


async def test_a_stopped_run_fails_what_waits_and_takes_nothing_more(api: Api, model: str) -> None:
    waiting = (await api.step(model, 7))["request_id"]  # waits for the numbers before it
    await change(api, "POST", model, "/stop")
    failed = await api.result(waiting)
    assert "stopped by its owner" in failed["error"]
    assert failed["category"] == "user"
    await ended(api, model)
    run = await shown(api, model)
    assert (run["state"], run["corrupted"]) == ("ended", False)
    refused = await api.step(model, 8, expect=404)
    assert "has ended" in refused["detail"]
    await change(api, "POST", model, "/stop")


async def test_a_stop_outlives_a_restart(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with served(tmp_path / "home", engine) as api:
        model = await api.model(await api.session())
        await change(api, "POST", model, "/stop")
    async with served(tmp_path / "home", engine) as api:
        await ended(api, model)
        assert (await shown(api, model))["state"] == "ended"


async def test_only_an_ended_run_can_be_deleted_and_its_checkpoints_go_with_it(
    api: Api, model: str
) -> None:
    body = {"model_id": model, "path": "a", "seq_id": 1}
    await api.result((await api.post("save_weights", body))["request_id"])
    refused = await change(api, "DELETE", model, expect=422)
    assert "stop it first" in refused["detail"]
    await change(api, "POST", model, "/stop")
    await ended(api, model)
    await change(api, "DELETE", model)
    assert (await api.send("GET", "training_runs")).json()["training_runs"] == []
    assert (await api.send("GET", "checkpoints")).json()["checkpoints"] == []
    await change(api, "DELETE", model, expect=404)


async def test_another_tenant_can_change_nothing_and_reads_no_notes(api: Api, model: str) -> None:
    other = api.as_tenant("tml-bob")
    for verb, part, body in (
        ("PUT", "/name", {"name": "x"}),
        ("PUT", "/note", {"note": "x"}),
        ("POST", "/stop", None),
        ("DELETE", "", None),
    ):
        await change(other, verb, model, part, body, expect=404)
    await change(api, "PUT", model, "/note", {"note": "private"})
    saved = {"model_id": model, "path": "a", "seq_id": 1}
    await api.result((await api.post("save_weights", saved))["request_id"])
    await api.send("POST", f"training_runs/{model}/checkpoints/weights/a/publish")
    seen = await other.send("GET", f"training_runs/{model}", params={"access_scope": "accessible"})
    assert seen.status_code == 200
    assert not {"note", "last_loss", "tokens"} & seen.json().keys()
    assert (await shown(api, model))["state"] == "live"


def test_runs_of_an_older_home_are_counted_from_what_is_left(tmp_path: Path) -> None:
    db = connect(tmp_path / "x.db")
    before = next(n for n, step in enumerate(MIGRATIONS) if step.__name__ == "_described_runs")
    for step in MIGRATIONS[:before]:
        step(db)
    db.execute(f"PRAGMA user_version = {before}")
    db.execute(
        """INSERT INTO runs (model_id, session_id, tenant, base_model, optimizer, created_at,
            requested_at, state) VALUES ('m', 's', 't', 'b', '{}', 0, 0, 'live')"""
    )
    for seq, kind in enumerate(["forward_backward", "optim_step", "optim_step", "forward"]):
        db.execute(
            """INSERT INTO operations (request_id, model_id, seq_id, tenant, kind, digest,
                payload_bytes, state, tokens, accepted_at)
                VALUES (?, 'm', ?, 't', ?, x'', 0, 'done', 10, 0)""",
            (f"r{seq}", seq, kind),
        )
    migrate(db)
    row = db.execute("SELECT step, tokens, name, note, loss FROM runs").fetchone()
    assert tuple(row) == (2, 10, None, None, None)
    db.close()
