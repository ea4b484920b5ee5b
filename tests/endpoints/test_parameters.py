"""Every parameter that the real clients document is honoured or refused by name."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from endpoints.conftest import KEY, MODEL, QUESTION, World
from endpoints.parameters import PATH, REQUESTS, names_of, render

BASIC: dict[str, dict[str, Any]] = {
    "POST /v1/completions": {"prompt": "x"},
    "POST /v1/chat/completions": {"messages": QUESTION},
    "POST /v1/responses": {"input": "x"},
    "POST /v1/messages": {"messages": QUESTION, "max_tokens": 2},
    "POST /v1/messages/count_tokens": {"messages": QUESTION},
}


@pytest.mark.parametrize("route", REQUESTS)
def test_every_documented_parameter_has_a_fate(route: str) -> None:
    kind, documented = REQUESTS[route]
    assert documented <= names_of(kind) | {*kind.labels, *kind.refused}
    assert not names_of(kind) & {*kind.labels, *kind.refused}


def test_the_page_says_what_the_types_say() -> None:
    assert PATH.read_text(encoding="utf-8") == render(), f"write {PATH.name} again: see testing.md"


@pytest.mark.parametrize("route", BASIC)
def test_what_is_refused_is_refused_by_name_and_labels_change_nothing(
    world: World, route: str
) -> None:
    kind, _ = REQUESTS[route]
    for name in kind.refused:
        status, answer = send(world, route, {name: {"something": "else"}})
        assert (status, name in answer) == (400, True), (name, answer)
    limit = {"max_tokens": 1} if "completions" in route else {}
    status, answer = send(world, route, {**{name: {"a": "b"} for name in kind.labels}, **limit})
    assert status == 200, answer


def send(world: World, route: str, body: dict[str, Any]) -> tuple[int, str]:
    method, path = route.split()
    values = {"model": MODEL, **BASIC[route], **body}
    if path == "/v1/responses":
        values["max_output_tokens"] = 1
    request = urllib.request.Request(
        world.url + path, json.dumps(values).encode(), {"x-api-key": KEY}, method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
