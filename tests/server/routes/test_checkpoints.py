"""Promises of the checkpoint routes: ownership, exactness, and answers clients can read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.served import Api, served


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with served(tmp_path / "home") as api:
        yield api


@pytest.fixture
async def model(api: Api) -> str:
    return await api.model(await api.session())


async def save(api: Api, model: str, seq: int, kind: str = "save_weights", **more: Any) -> str:
    body = {"model_id": model, "path": f"ck-{seq}", "seq_id": seq, **more}
    answer = await api.post(kind, body)
    result = await api.result(answer["request_id"])
    assert "error" not in result, result
    return str(result["path"])


def below(path: str) -> str:
    """The route of a checkpoint."""
    run, _, checkpoint = path.removeprefix("tinker://").partition("/")
    return f"training_runs/{run}/checkpoints/{checkpoint}"


async def test_a_checkpoint_is_listed_described_and_found_again(api: Api, model: str) -> None:
    path = await save(api, model, 1, ttl_seconds=7200, user_metadata={"a": "b"})
    (mine,) = (await api.send("GET", "checkpoints")).json()["checkpoints"]
    assert (mine["tinker_path"], mine["checkpoint_type"]) == (path, "training")
    assert (mine["user_metadata"], mine["public"]) == ({"a": "b"}, False)
    assert mine["expires_at"] is not None
    run = (await api.send("GET", f"training_runs/{model}")).json()
    assert run["last_checkpoint"] == mine
    info = await api.post("weights_info", {"tinker_path": path})
    assert (info["lora_rank"], info["is_lora"], info["train_mlp"]) == (8, True, True)
    assert info["optimizer_config"] == {"type": "adamw"}


async def test_pages_say_how_many_there_are(api: Api, model: str) -> None:
    paths = [await save(api, model, seq) for seq in (1, 2, 3)]
    answer = (await api.send("GET", "checkpoints", params={"limit": 2, "offset": 1})).json()
    assert [each["tinker_path"] for each in answer["checkpoints"]] == [paths[1], paths[0]]
    assert answer["cursor"] == {"offset": 1, "limit": 2, "total_count": 3}


async def test_publishing_twice_is_no_conflict(api: Api, model: str) -> None:
    """A conflict would be retried by clients for minutes."""
    path = await save(api, model, 1)
    for method, public in (("POST", True), ("POST", True), ("DELETE", False), ("DELETE", False)):
        response = await api.send(method, f"{below(path)}/publish")
        assert response.status_code == 200
        (mine,) = (await api.send("GET", "checkpoints")).json()["checkpoints"]
        assert mine["public"] is public


async def test_another_tenant_can_neither_see_nor_touch_what_is_private(
    api: Api, model: str
) -> None:
    path = await save(api, model, 1)
    other = api.as_tenant("tml-bob")
    attempts = [
        ("GET", f"training_runs/{model}", None),
        ("GET", f"training_runs/{model}/checkpoints", None),
        ("DELETE", below(path), None),
        ("POST", f"{below(path)}/publish", None),
        ("DELETE", f"{below(path)}/publish", None),
        ("PUT", f"{below(path)}/ttl", {"ttl_seconds": 3600}),
        ("GET", f"{below(path)}/external_weights_urls", None),
        ("GET", f"{below(path)}/archive", None),
        ("POST", "weights_info", {"tinker_path": path}),
        ("POST", "copy_weights", {"source_path": path}),
        ("GET", f"sessions/{model.partition(':')[0]}", None),
        ("PUT", f"sessions/{model.partition(':')[0]}/project", {"project_id": "p"}),
        ("GET", f"sessions/{model.partition(':')[0]}/trace_export", None),
    ]
    for method, route, body in attempts:
        response = await other.send(method, route, json=body)
        assert response.status_code == 404, (method, route, response.text)
    assert (await other.send("GET", "training_runs")).json()["training_runs"] == []
    (mine,) = (await api.send("GET", "checkpoints")).json()["checkpoints"]
    assert mine["public"] is False


async def test_a_published_checkpoint_is_readable_by_all_and_changed_by_none_but_its_owner(
    api: Api, model: str
) -> None:
    path = await save(api, model, 1)
    private = await save(api, model, 2)
    await api.send("POST", f"{below(path)}/publish")
    other = api.as_tenant("tml-bob")
    assert (await other.post("weights_info", {"tinker_path": path}))["lora_rank"] == 8
    listed = (await other.send("GET", f"training_runs/{model}/checkpoints")).json()["checkpoints"]
    assert [each["tinker_path"] for each in listed] == [path]
    scope = {"access_scope": "accessible"}
    run = (await other.send("GET", f"training_runs/{model}", params=scope)).json()
    assert run["last_checkpoint"]["tinker_path"] == path != private
    assert (await other.send("GET", f"training_runs/{model}")).status_code == 404
    assert (await other.send("DELETE", below(path))).status_code == 404


async def test_a_copy_is_made_once_per_key_and_with_a_foreign_token(api: Api, model: str) -> None:
    path = await save(api, model, 1)
    other = api.as_tenant("tml-bob")
    headers = {"x-idempotency-key": "k1", "x-tinker-weights-access-token": "tml-alice"}
    body = {"source_path": path, "destination_project_id": "p"}
    first = await other.send("POST", "copy_weights", json=body, headers=headers)
    again = await other.send("POST", "copy_weights", json=body, headers=headers)
    assert first.json() == again.json()
    copy = first.json()["tinker_path"]
    run, _, _ = copy.removeprefix("tinker://").partition("/")
    assert (await other.send("GET", f"training_runs/{run}")).json()["lora_rank"] == 8
    pages = await other.send("GET", "training_runs", params={"project_id": "p"})
    assert [each["training_run_id"] for each in pages.json()["training_runs"]] == [run]
    assert (await api.send("GET", f"training_runs/{run}")).status_code == 404


@pytest.mark.parametrize(
    ("method", "route", "body", "field"),
    [
        ("POST", "weights_info", {"tinker_path": "x"}, "tinker://"),
        ("POST", "weights_info", {}, "tinker_path"),
        ("POST", "weights_info", {"tinker_path": "x", "extra": 1}, "extra"),
        (
            "POST",
            "copy_weights",
            {"source_path": "tinker://a/weights/b", "session_id": "s"},
            "session_id",
        ),
        ("GET", "training_runs?limit=-1", None, "limit"),
        ("GET", "training_runs?offset=x", None, "offset"),
        ("GET", "training_runs?access_scope=all", None, "access_scope"),
        ("GET", "checkpoints?limit=1e3", None, "limit"),
        ("GET", "audit?day=today", None, "day"),
        ("GET", "audit?event_type=secrets", None, "event_type"),
        ("GET", "billing/usage/events", None, "starting_on"),
        ("POST", "sessions/search", {"owner": {"type": "everyone"}}, "owner.type"),
        ("POST", "sessions/search", {"limit": 0}, "limit"),
        ("POST", "sessions/search", {"statuses": [{"type": "lost"}]}, "statuses"),
        (
            "POST",
            "sessions/search",
            {"cursor": {"last_created_at": "x", "last_session_id": "s"}},
            "cursor",
        ),
    ],
)
async def test_a_wrong_field_is_named(
    api: Api, method: str, route: str, body: Any, field: str
) -> None:
    response = await api.send(method, route, json=body)
    assert response.status_code == 422, response.text
    assert field in response.json()["detail"]


async def test_a_ttl_is_set_cleared_and_checked(api: Api, model: str) -> None:
    path = await save(api, model, 1)
    for ttl, status in ((3600, 200), (60, 422), (None, 200), ("x", 422)):
        response = await api.send("PUT", f"{below(path)}/ttl", json={"ttl_seconds": ttl})
        assert response.status_code == status, ttl
    (mine,) = (await api.send("GET", "checkpoints")).json()["checkpoints"]
    assert mine["expires_at"] is None


async def test_a_taken_name_fails_its_future_and_the_run_goes_on(api: Api, model: str) -> None:
    await save(api, model, 1)
    body = {"model_id": model, "path": "ck-1", "seq_id": 2}
    answer = await api.post("save_weights", body)
    result = await api.result(answer["request_id"])
    assert (result["category"], "already exists" in result["error"]) == ("user", True)
    await save(api, model, 3)


@pytest.mark.parametrize("name", ["..", "a/b", "é", "", "x" * 200, "a b", ".hidden"])
async def test_a_bad_name_fails_its_future_and_leaves_nothing(
    api: Api, model: str, name: str
) -> None:
    answer = await api.post("save_weights", {"model_id": model, "path": name, "seq_id": 1})
    result = await api.result(answer["request_id"])
    assert result["category"] == "user"
    assert (await api.send("GET", "checkpoints")).json()["checkpoints"] == []
    assert api.core.weights.names() == set()
