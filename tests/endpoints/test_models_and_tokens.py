"""GET /models, POST /tokenize and /detokenize, GET /tokenizer_info: what a key can name, and how
its text becomes tokens."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import anthropic
import openai
import pytest

import tinkex
from endpoints.conftest import KEY, MODEL, QUESTION, STRANGER, TOOL, World

PATHS = ["/v1", "/oai/api/v1", ""]
TEXT = "Grüße, 😀 <|im_end|>"


def call(world: World, path: str, body: Any = None, key: str = KEY) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(world.url + path, data, {"authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.mark.parametrize("base", ["/v1", "/oai/api/v1"])
def test_models_are_a_keys_own_newest_first_then_base_models(world: World, base: str) -> None:
    with openai.OpenAI(base_url=world.url + base, api_key=KEY, max_retries=0) as client:
        found = [model.id for model in client.models.list()]
        assert found[-1] == MODEL
        assert [name for name in found if name in (world.adapter, world.caller)] == [
            world.caller,
            world.adapter,
        ]
        for name in (world.adapter, MODEL):
            assert client.models.retrieve(name).id == name
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("nobody/knows")


@pytest.mark.parametrize("base", ["", "/anthropic", "/anthropic/api"])
def test_models_speak_anthropics_words_too(world: World, base: str) -> None:
    with anthropic.Anthropic(base_url=world.url + base, api_key=KEY, max_retries=0) as client:
        found = {model.id: model for model in client.models.list()}
        assert {world.adapter, MODEL} <= found.keys()
        assert found[world.adapter].type == "model"
        assert client.models.retrieve(MODEL).id == MODEL
        if base:
            with pytest.raises(anthropic.NotFoundError, match="not_found_error"):
                client.models.retrieve("nobody/knows")


def test_models_come_in_pages_where_a_client_asks_for_them(world: World) -> None:
    with anthropic.Anthropic(base_url=world.url, api_key=KEY, max_retries=0) as client:
        whole = [model.id for model in client.models.list()]
        first = client.models.list(limit=1)
        assert ([model.id for model in first.data], first.has_more) == (whole[:1], True)
        assert [model.id for model in client.models.list(limit=1)] == whole, "page by page"
        before = client.models.list(limit=1, before_id=whole[2])
        assert ([model.id for model in before.data], before.has_more) == (whole[1:2], True)
        for wrong in ({"limit": 0}, {"limit": 1001}, {"after_id": "nobody/knows"}):
            with pytest.raises(anthropic.BadRequestError, match=next(iter(wrong))):
                client.models.list(**wrong)


def test_strangers_see_base_models_and_what_was_published(world: World) -> None:
    def names() -> list[str]:
        return [model["id"] for model in call(world, "/v1/models", key=STRANGER)[1]["data"]]

    assert names() == [MODEL]
    quoted = urllib.parse.quote(world.adapter, safe="")
    assert call(world, f"/v1/models/{quoted}", key=STRANGER)[0] == 404
    rest = tinkex.RestClient(base_url=world.url, api_key=KEY)
    rest.publish_checkpoint_from_tinker_path(world.adapter).result()
    assert names() == [world.adapter, MODEL]
    assert call(world, f"/v1/models/{quoted}", key=STRANGER)[1]["owned_by"] == "published"
    rest.unpublish_checkpoint_from_tinker_path(world.adapter).result()
    assert names() == [MODEL]
    rest.holder.close()


@pytest.mark.parametrize("base", PATHS)
def test_text_becomes_the_tokens_that_are_drawn_from_and_back(world: World, base: str) -> None:
    for model in (MODEL, world.adapter):
        asked = {"model": model, "prompt": TEXT, "return_token_strs": True}
        status, found = call(world, f"{base}/tokenize", asked)
        assert (status, found["tokens"]) == (200, world.text.encode(TEXT))
        assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
        assert found["max_model_len"] > 100
        back = call(world, f"{base}/detokenize", {"model": model, "tokens": found["tokens"]})
        assert back == (200, {"prompt": TEXT})


def test_messages_become_the_tokens_that_chat_draws_from(world: World) -> None:
    asked = {"model": MODEL, "messages": QUESTION, "tools": [TOOL]}
    _, found = call(world, "/v1/tokenize", asked)
    assert found["tokens"] == world.text.chat(QUESTION, [TOOL]).tokens
    assert found["token_strs"] is None


def test_the_only_model_need_not_be_named(world: World) -> None:
    assert call(world, "/tokenize", {"prompt": "x"})[1]["tokens"] == world.text.encode("x")
    status, found = call(world, "/tokenizer_info")
    assert (status, found["vocab_size"]) == (200, len(world.text.tokenizer))
    assert found["chat_template"] == world.text.tokenizer.chat_template
    assert found["eos_token"] == world.text.tokenizer.eos_token
    quoted = urllib.parse.quote(world.adapter, safe="")
    assert call(world, f"/v1/tokenizer_info?model={quoted}")[1] == found


def test_a_long_text_is_worked_on_elsewhere_and_is_the_same(world: World) -> None:
    long = TEXT * 2000
    asked = {"prompt": long, "return_token_strs": True}
    found = call(world, "/v1/tokenize", asked)[1]
    assert found["tokens"] == world.text.encode(long)
    assert len(found["token_strs"]) == found["count"]
    assert call(world, "/v1/detokenize", {"tokens": found["tokens"]})[1]["prompt"] == long


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("tokenize", {}, "prompt"),
        ("tokenize", {"prompt": "x", "messages": QUESTION}, "prompt"),
        ("tokenize", {"prompt": "x", "surprise": 1}, "surprise"),
        ("tokenize", {"prompt": 7}, "prompt"),
        ("detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("detokenize", {"tokens": ["x"]}, "tokens[0]"),
        ("detokenize", {}, "tokens"),
        ("detokenize", {"tokens": [1, 10**6]}, "tokens[1]"),
        ("detokenize", {"tokens": ["x"] * 100_000}, "tokens[0]"),
        ("tokenize", {"prompt": "x" * (4 * 2**20 + 1)}, "prompt"),
        ("tokenize", {str(number): 1 for number in range(2000)}, "the body"),
    ],
)
def test_what_is_wrong_is_refused_by_name(
    world: World, path: str, body: dict[str, Any], param: str
) -> None:
    status, found = call(world, f"/v1/{path}", body)
    assert (status, found["error"]["param"]) == (400, param)


def test_strangers_get_no_text_by_anothers_weights(world: World) -> None:
    quoted = urllib.parse.quote(world.adapter, safe="")
    for path, body in (
        ("/v1/tokenize", {"model": world.adapter, "prompt": "x"}),
        ("/v1/detokenize", {"model": world.adapter, "tokens": [1]}),
        (f"/v1/tokenizer_info?model={quoted}", None),
    ):
        assert call(world, path, body, STRANGER)[0] == 404
        assert call(world, path, body, "sk-none")[0] == 401


PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aa"}}


@pytest.mark.parametrize(
    ("path", "name", "part"),
    [
        ("chat/completions", "messages", {"type": "image_url", "image_url": {"url": "data:,"}}),
        ("chat/completions", "messages", {"type": "input_audio", "input_audio": {"data": ""}}),
        ("chat/completions", "messages", {"type": "file", "file": {"file_id": "x"}}),
        ("responses", "input", {"type": "input_image", "image_url": "data:,"}),
        ("responses", "input", {"type": "input_audio", "input_audio": {"data": ""}}),
        ("responses", "input", {"type": "input_file", "file_id": "x"}),
        ("messages", "messages", PICTURE),
        ("messages", "messages", {**PICTURE, "type": "document"}),
        ("messages/count_tokens", "messages", PICTURE),
        ("tokenize", "messages", {"type": "image_url", "image_url": {"url": "data:,"}}),
    ],
)
def test_pictures_sound_and_files_are_refused_by_name(
    world: World, path: str, name: str, part: dict[str, Any]
) -> None:
    body = {"model": MODEL, name: [{"role": "user", "content": [part]}]}
    status, found = call(
        world, f"/v1/{path}", body | ({"max_tokens": 1} if path == "messages" else {})
    )
    assert status == 400
    told = json.dumps(found["error"])
    assert f"{name}[0].content[0]" in told
    assert part["type"] in told or "text" in told
