"""Odd requests, each answered as the API in question would, or refused by the name it used."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

import tinkex
from endpoints.conftest import KEY, MODEL, QUESTION, World

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


def post(world: World, path: str, **body: Any) -> httpx.Response:
    headers = {"x-api-key": KEY}
    return httpx.post(f"{world.url}{path}", json={"model": MODEL, **body}, headers=headers)


def error(answer: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = answer.json()["error"]
    return found


@pytest.mark.parametrize(
    ("path", "part"),
    [
        (CHAT, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}),
        (CHAT, {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}),
        (RESPONSES, {"type": "input_image", "image_url": "data:image/png;base64,AA"}),
        (MESSAGES, {"type": "document", "source": {"type": "text", "data": "AA"}}),
    ],
)
def test_media_are_refused_by_their_name(world: World, path: str, part: dict[str, Any]) -> None:
    turn = [{"role": "user", "content": [part]}]
    held = {"input": turn} if path == RESPONSES else {"messages": turn, "max_tokens": 1}
    answer = post(world, path, **held)
    assert answer.status_code == 400
    assert repr(part["type"]) in error(answer)["message"]
    assert "text only" in error(answer)["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/embeddings", 404),
        ("GET", CHAT, 405),
        ("POST", "/oai/api/v1/images/generations", 404),
    ],
)
def test_what_is_not_served_is_told_in_the_shape_that_clients_read(
    world: World, method: str, path: str, status: int
) -> None:
    answer = httpx.request(method, f"{world.url}{path}", headers={"x-api-key": KEY})
    assert answer.status_code == status
    assert error(answer)["code"] == "unknown_url"
    assert f"{method} {path}" in error(answer)["message"]
    assert "chat/completions, completions" in error(answer)["message"]


@pytest.mark.parametrize(
    ("path", "meant", "mend"),
    [
        ("/chat/completions", CHAT, "end the client's base URL in /v1"),
        ("/v1/v1/chat/completions", CHAT, "leave /v1 out of the base URL"),
        ("/v1/v1/messages", MESSAGES, "leave /v1 out of the base URL"),
        ("//v1/messages", MESSAGES, "end the client's base URL without a slash"),
    ],
)
def test_a_base_url_with_one_v1_too_few_or_too_many_is_told_so(
    world: World, path: str, meant: str, mend: str
) -> None:
    answer = post(world, path)
    assert answer.status_code == 404
    assert f"POST {path} is not served here, but {meant} is: {mend}" in error(answer)["message"]
    assert ("type" in answer.json()) is (meant == MESSAGES), "each in its API's own shape"


@pytest.mark.parametrize("extra", ["/v1", "/api/v1", "/oai", "/some/where"])
def test_a_client_of_the_tinker_api_is_told_that_its_base_url_is_too_long(
    world: World, extra: str
) -> None:
    with pytest.raises(tinkex.NotFoundError, match=f"leave {extra} out of the base URL"):
        tinkex.RestClient(base_url=f"{world.url}{extra}", api_key=KEY).list_sessions().result()
    assert post(world, "/some/api/v1/where").json() == {"detail": "Not Found"}


def test_a_wrong_method_is_told_which_are_right(world: World) -> None:
    for path, allowed in ((CHAT, "POST"), ("/v1/models", "GET"), ("/api/v1/asample", "POST")):
        answer = httpx.request("DELETE", f"{world.url}{path}", headers={"x-api-key": KEY})
        assert answer.status_code == 405
        assert allowed in answer.headers["allow"].split(", ")


def test_a_path_beside_messages_is_told_as_that_api_tells_it(world: World) -> None:
    answer = httpx.get(f"{world.url}/anthropic/api/v1/files", headers={"x-api-key": KEY})
    assert answer.status_code == 404
    assert answer.json()["type"] == "error"
    assert error(answer)["type"] == "not_found_error"


BAD = {"$ref": "#/$defs/nowhere"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": BAD}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "field", "held"),
    [
        (
            CHAT,
            "response_format",
            {"response_format": {"type": "json_schema", "json_schema": {"schema": BAD}}},
        ),
        (CHAT, "tools", {"tools": [TOOL], "tool_choice": "required"}),
        (RESPONSES, "text.format", {"text": {"format": {"type": "json_schema", "schema": BAD}}}),
        (
            MESSAGES,
            "output_config.format",
            {"output_config": {"format": {"type": "json_schema", "schema": BAD}}},
        ),
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused_by_the_field_it_came_in(
    world: World, path: str, field: str, held: dict[str, Any], stream: bool
) -> None:
    asked = {"input": "x"} if path == RESPONSES else {"messages": QUESTION, "max_tokens": 4}
    answer = post(world, path, **asked, **held, stream=stream)
    assert answer.status_code == 400
    assert error(answer)["message"].startswith(f"{field}: failed to compile JSON schema")
    assert error(answer).get("param", field) == field


def test_two_limits_that_disagree_are_refused(world: World) -> None:
    limits = {"max_tokens": 2, "max_completion_tokens": 3}
    answer = post(world, CHAT, messages=QUESTION, **limits)
    assert answer.status_code == 400
    assert error(answer)["param"] == "max_tokens"
    same = post(world, CHAT, messages=QUESTION, max_tokens=1, max_completion_tokens=1)
    assert same.json()["usage"]["completion_tokens"] == 1


def test_a_response_that_was_cut_off_ends_with_an_incomplete_item(world: World) -> None:
    client = openai.OpenAI(base_url=f"{world.url}/v1", api_key=KEY)
    asked: Any = {"model": MODEL, "input": "x", "max_output_tokens": 8, "temperature": 0}
    with client:
        whole = client.responses.create(**asked)
        events = list(client.responses.create(**asked, stream=True))
    assert (whole.status, whole.output[0].status) == ("incomplete", "incomplete")
    done = [event for event in events if event.type == "response.output_item.done"]
    assert [event.item.status for event in done] == ["incomplete"]


@pytest.mark.parametrize(
    ("path", "begins"),
    [(CHAT, "chatcmpl-"), (RESPONSES, "resp_"), (MESSAGES, "msg_"), ("/v1/completions", "cmpl-")],
)
def test_answers_are_numbered_as_each_api_numbers_them(
    world: World, path: str, begins: str
) -> None:
    held = {
        CHAT: {"messages": QUESTION, "max_tokens": 1},
        MESSAGES: {"messages": QUESTION, "max_tokens": 1},
        RESPONSES: {"input": "x", "max_output_tokens": 1},
    }.get(path, {"prompt": "x", "max_tokens": 1})
    assert post(world, path, **held).json()["id"].startswith(begins)


PLUS = {"type": "function", "function": {"name": "plus"}}
PLUS_BLOCK = {"name": "plus", "input_schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("path", "held", "said"),
    [
        (CHAT, {"stop": ["x"] * 65}, "stop has 65 entries; the limit is 64"),
        (CHAT, {"stop_token_ids": [10**6]}, "stop_token_ids: id 1000000 is outside"),
        (CHAT, {"messages": [{"role": "user"}]}, "messages[0] needs content"),
        (CHAT, {"messages": [{"role": "system", "content": None}]}, "messages[0] needs content"),
        (CHAT, {"tools": [PLUS, PLUS]}, "tools: 'plus' is there twice"),
        (MESSAGES, {"tools": [PLUS_BLOCK, PLUS_BLOCK]}, "tools: 'plus' is there twice"),
        (MESSAGES, {"tools": [{**PLUS_BLOCK, "name": "a b"}]}, "tools[0].name must match "),
        (CHAT, {"reasoning_effort": "high"}, "reasoning_effort is not read by"),
        (MESSAGES, {"output_config": {"effort": "high"}}, "output_config.effort is not read by"),
        (RESPONSES, {"reasoning": {"effort": "high"}}, "reasoning.effort is not read by"),
        (
            RESPONSES,
            {"input": [{"type": "item_reference", "id": "x"}]},
            "input[0].type must be one of message, function_call, function_call_output, reasoning",
        ),
    ],
)
def test_what_is_wrong_is_told_by_the_name_it_came_under(
    world: World, path: str, held: dict[str, Any], said: str
) -> None:
    asked = {"input": "x"} if path == RESPONSES else {"messages": QUESTION, "max_tokens": 4}
    answer = post(world, path, **{**asked, **held})
    assert (answer.status_code, error(answer)["message"][: len(said)]) == (400, said)
