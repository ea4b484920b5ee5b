"""The description of the API says of every route what it takes and answers, as the code has it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import BaseRoute, Route

from support.served import served
from tinkex.server.app import ROUTES
from tinkex.server.http import openapi
from tinkex.server.http.openapi import document
from tinkex.wire.routes import DESCRIPTION

DOCUMENT = document(ROUTES)
API = ("/api/", "/v1/", "/oai/", "/anthropic/", "/tokenize", "/detokenize")


def _operations() -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (path, method, operation)
        for path, methods in DOCUMENT["paths"].items()
        for method, operation in methods.items()
    ]


def test_every_route_of_the_api_is_there() -> None:
    described = {(path, method.upper()) for path, method, _ in _operations()}
    served_ = {
        (route.path.replace(":path", ""), method)
        for route in ROUTES
        if isinstance(route, Route) and route.path.startswith(API)
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert described == served_


def test_every_body_is_described_and_every_post_but_the_known_ones_has_one() -> None:
    bare = {path for path, method, each in _operations() if "requestBody" not in each}
    posts = {path for path, method, _ in _operations() if method in ("post", "put")}
    one = "/api/v1/training_runs/{training_run_id}/checkpoints/{kind}/{name}"
    stop = "/api/v1/training_runs/{training_run_id}/stop"
    dashboard = {"/api/v1/dashboard/invitation", "/api/v1/dashboard/visit"}
    known = {"/api/v1/auth/token", "/api/v1/home/collect", f"{one}/publish", stop, *dashboard}
    assert bare & posts == known
    for path, _, operation in _operations():
        for media, content in operation.get("requestBody", {}).get("content", {}).items():
            schema = content.get("schema", {})
            schemas = [schema] if "type" in schema else schema.get("anyOf", [])
            if media == "application/json" and path != "/api/v1/telemetry":
                assert schemas, path
                assert all(schema["type"] == "object" for schema in schemas), path


def test_types_of_one_name_are_described_apart() -> None:
    described = DOCUMENT["components"]["schemas"]
    assert "checkpoint_id" in described["Checkpoint"]["properties"]
    assert "checkpoint_id" not in described["dashboard_shapes.Checkpoint"]["properties"]


def test_every_reference_leads_somewhere() -> None:
    def walk(value: Any) -> None:
        if isinstance(value, dict):
            reference = value.get("$ref")
            if isinstance(reference, str):
                assert reference.rpartition("/")[2] in DOCUMENT["components"]["schemas"]
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(DOCUMENT)


async def test_it_is_served_to_anyone(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        response = await api.client.get("/api/v1/openapi.json")
    assert response.json() == DOCUMENT


@pytest.mark.parametrize("path", ["/api/v1/asample", "/api/v1/optim_step"])
def test_the_bounds_are_those_of_the_readers(path: str) -> None:
    text = str(DOCUMENT["paths"][path]["post"]["requestBody"])
    assert "'maximum': 2147483647" in text
    assert "'additionalProperties': {'type': 'null'}" in text


async def test_many_who_ask_at_once_have_it_made_and_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs no key, takes half a second to make, and ten milliseconds to write."""
    made = []

    def counted(routes: Iterable[BaseRoute]) -> dict[str, Any]:
        made.append(1)
        return document(routes)

    monkeypatch.setattr(openapi, "document", counted)
    async with served(tmp_path) as api:
        asked = [api.client.get(DESCRIPTION) for _ in range(20)]
        answers = await asyncio.gather(*asked)
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.content for answer in answers}) == 1
    assert made == [1]
