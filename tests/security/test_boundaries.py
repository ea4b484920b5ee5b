"""Another tenant's ids open nothing, on any route: generated from the table of routes itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from support.served import Api, forward_body, served
from tinkex.server.app import ROUTES

PUBLIC = {
    "/api/v1/healthz",
    "/api/v1/client/config",
    "/api/v1/client/dynamic_config",
    "/api/v1/auth/token",
    "/api/v1/get_server_capabilities",
    "/api/v1/openapi.json",
    "/",
    "/api/v1/dashboard/visit",
}
ANYONES = ("tokenizer", "telemetry", "create_session", "metrics", "search", "/models")
"""Routes that take no id of anyone's: they make something of the asker's own, or list what the
asker may see."""
STATIC = "/page/"
"""The dashboard's own files: the same for everybody, and nothing of anyone's in them."""
SIGNED = ("/files/", "/archives/", "/traces/")
"""Opened by a signature in the link, whoever asks."""


async def _belongings(api: Api) -> dict[str, Any]:
    """What Alice has, by the names routes and bodies use."""
    session = await api.session()
    model = await api.model(session)
    forward = await api.forward(model, 1)
    await api.result(forward["request_id"])
    save = {"model_id": model, "seq_id": 2, "path": "mine"}
    saved = await api.result((await api.post("save_weights", save))["request_id"])
    sampling = {"model_id": model, "seq_id": 3, "path": "served"}
    served_ = await api.result((await api.post("save_weights_for_sampler", sampling))["request_id"])
    asked = {"session_id": session, "sampling_session_seq_id": 0, "model_path": served_["path"]}
    sampler = await api.post("create_sampling_session", asked)
    return {
        "session_id": session,
        "model_id": model,
        "training_run_id": model,
        "run": model,
        "kind": "weights",
        "name": "mine",
        "file": "adapter_config.json",
        "request_id": forward["request_id"],
        "sampling_session_id": sampler["sampling_session_id"],
        "sampler_id": sampler["sampling_session_id"],
        "tinker_path": saved["path"],
        "path": saved["path"],
        "model_path": saved["path"],
        "source_path": saved["path"],
    }


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[tuple[Api, Api, dict[str, Any]]]:
    async with served(tmp_path) as api:
        mine = await _belongings(api)
        yield api, api.as_tenant("tml-mallory"), mine


def _routes() -> list[tuple[str, str]]:
    return [
        (method, route.path)
        for route in ROUTES
        if isinstance(route, Route)
        for method in sorted((route.methods or set()) - {"HEAD"})
    ]


def _filled(path: str, mine: dict[str, Any]) -> str:
    for name, value in mine.items():
        for form in (f"{{{name}}}", f"{{{name}:path}}"):
            path = path.replace(form, str(value))
    return path


async def test_every_route_with_an_id_refuses_another_tenant(
    world: tuple[Api, Api, dict[str, Any]],
) -> None:
    _, mallory, mine = world
    walked = 0
    for method, path in _routes():
        filled = _filled(path, mine)
        if filled == path or "/models/" in path or path.startswith(STATIC):
            continue
        assert "{" not in filled, f"{path} has a part this test does not know"
        walked += 1
        response = await mallory.send(method, filled.removeprefix("/api/v1/"), json={})
        expected = (403,) if any(part in path for part in SIGNED) else (404, 422)
        assert response.status_code in expected, (method, path, response.status_code)
        unknown = filled.replace(mine["session_id"], "0" * 8 + "-none")
        other = await mallory.send(method, unknown.removeprefix("/api/v1/"), json={})
        assert other.status_code == response.status_code, (method, path)
    assert walked >= 15


BODIES = (
    ("optim_step", ("model_id",), {"seq_id": 9, "adam_params": {}}),
    ("save_weights", ("model_id",), {"seq_id": 9, "path": "x"}),
    ("save_weights_for_sampler", ("model_id",), {"seq_id": 9, "path": "x"}),
    ("load_weights", ("model_id",), {"seq_id": 9, "path": "x", "optimizer": True}),
    ("get_info", ("model_id",), {}),
    ("retrieve_future", ("request_id",), {"allow_metadata_only": False}),
    ("create_sampling_session", ("session_id",), {"sampling_session_seq_id": 1}),
    ("session_heartbeat", ("session_id",), {}),
    ("weights_info", ("tinker_path",), {}),
)


@pytest.mark.parametrize(("path", "names", "rest"), BODIES)
async def test_every_body_with_an_id_refuses_another_tenant(
    world: tuple[Api, Api, dict[str, Any]], path: str, names: tuple[str, ...], rest: dict[str, Any]
) -> None:
    _, mallory, mine = world
    body = {**rest, **{name: mine[name] for name in names}}
    response = await mallory.send("POST", path, json=body)
    assert response.status_code == 404, (path, response.status_code, response.text)


async def test_another_tenants_run_takes_no_training(
    world: tuple[Api, Api, dict[str, Any]],
) -> None:
    api, mallory, mine = world
    before = list(api.applied(mine["model_id"]))
    await mallory.forward(mine["model_id"], 9, expect=404)
    assert api.applied(mine["model_id"]) == before


async def test_every_route_but_the_public_ones_wants_a_key(
    world: tuple[Api, Api, dict[str, Any]],
) -> None:
    api, _, mine = world
    for method, path in _routes():
        if path in PUBLIC or path.startswith(STATIC) or any(part in path for part in ANYONES):
            continue
        response = await api.client.request(method, _filled(path, mine), json={})
        expected = 403 if any(part in path for part in SIGNED) else 401
        assert response.status_code == expected, (method, path, response.status_code)


async def test_a_key_shows_nowhere(
    world: tuple[Api, Api, dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    """Not in errors, logs, metrics, nor in any file of the home."""
    caplog.set_level("DEBUG")
    api, _, _ = world
    secret = api.as_tenant("tml-very-secret-key-0123456789")
    session = await secret.session()
    model = await secret.model(session)
    await secret.forward(model, 1, content=forward_body(model, 1))
    wrong = await secret.send("POST", "optim_step", json={"model_id": 7})
    missing = await secret.send("GET", "training_runs/nothing")
    metrics = await api.client.get("/metrics", headers={"x-api-key": secret.key})
    shown = caplog.text + wrong.text + missing.text + metrics.text
    assert "very-secret" not in shown
    home = api.core.settings.home
    for file in home.rglob("*"):
        if file.is_file():
            assert b"very-secret" not in file.read_bytes(), file


async def test_nobody_can_say_on_whose_behalf_weights_are_loaded(
    world: tuple[Api, Api, dict[str, Any]],
) -> None:
    """The server's own note of whose token came with a load is no field of a request."""
    api, mallory, mine = world
    run = await api.send("GET", f"training_runs/{mine['model_id']}")
    owner = run.json()["model_owner"].rpartition(":")[2]
    model = await mallory.model(await mallory.session())
    body = {"model_id": model, "seq_id": 1, "path": mine["path"], "optimizer": True}
    await mallory.post("load_weights", {**body, "bearer": owner}, expect=422)
    refused = await mallory.result((await mallory.post("load_weights", body))["request_id"])
    assert refused["category"] == "user"
    assert mallory.applied(model) == []
