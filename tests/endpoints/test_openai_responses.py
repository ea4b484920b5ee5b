"""POST /responses through the real `openai` package: nothing is kept, everything is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from endpoints.conftest import (
    ARGUMENTS,
    CONTENT,
    KEY,
    MODEL,
    REASONING,
    STRANGER,
    TOOL,
    World,
)

FLAT: Any = {"type": "function", **TOOL["function"]}


@pytest.fixture(params=["/v1", "/oai/api/v1"])
def client(world: World, request: pytest.FixtureRequest) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=world.url + request.param, api_key=KEY, max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, model: str, **options: Any) -> Any:
    values: dict[str, Any] = {"input": "1+1?", "max_output_tokens": 200, "temperature": 0}
    return client.responses.create(model=model, **{**values, **options})


def test_reasoning_message_and_call_are_items(world: World, client: openai.OpenAI) -> None:
    found = ask(client, world.caller, tools=[FLAT], store=False)
    reasoning, message, call = found.output
    assert reasoning.content[0].text == REASONING
    assert message.content[0].text == found.output_text == CONTENT
    assert (call.name, call.arguments) == ("add", ARGUMENTS)
    assert found.status == "completed"
    assert found.tinkex["weights"]["path"] == world.caller


def test_a_stream_makes_the_same_response(world: World, client: openai.OpenAI) -> None:
    whole = ask(client, world.caller, tools=[FLAT])
    with client.responses.stream(
        model=world.caller, input="1+1?", max_output_tokens=200, temperature=0, tools=[FLAT]
    ) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(texts) == CONTENT
    assert len(texts) > 3
    assert final.output_text == whole.output_text
    assert [item.type for item in final.output] == [item.type for item in whole.output]
    assert final.usage is not None
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_a_streams_logprobs_come_with_its_text(world: World, client: openai.OpenAI) -> None:
    asked: Any = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole = ask(client, world.adapter, **asked).output[0].content[0].logprobs
    events = list(ask(client, world.adapter, **asked, stream=True))
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    (done,) = [event for event in events if event.type == "response.output_text.done"]
    told = [each for event in deltas for each in event.logprobs]
    assert len(whole) == len(done.logprobs) > len(deltas) / 2
    assert [each.token for each in done.logprobs] == [each.token for each in whole]
    assert [each.token for each in told] == [each.token for each in whole[: len(told)]]
    assert all(len(each.top_logprobs) == 2 for each in told)
    assert len(told) >= len(whole) - 1, "but for the token that ended it"
    final = events[-1].response.output[0].content[0].logprobs
    assert [each.logprob for each in final] == [each.logprob for each in done.logprobs]


def test_a_conversation_goes_on_by_sending_it_whole(world: World, client: openai.OpenAI) -> None:
    found = ask(client, world.caller, tools=[FLAT])
    call = found.output[-1]
    items = [item.model_dump(exclude_none=True) for item in found.output]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "2"}
    again = ask(
        client,
        MODEL,
        input=[{"role": "user", "content": "1+1?"}, *items, result],
        instructions="Be brief.",
        max_output_tokens=3,
    )
    assert again.status == "incomplete"
    assert again.incomplete_details.reason == "max_output_tokens"
    assert again.usage.input_tokens > 80


def test_schemas_and_forced_calls_are_kept_to(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"b": {"enum": ["x"]}}, "required": ["b"]}
    closed = {**schema, "additionalProperties": False}
    kind = {"format": {"type": "json_schema", "name": "s", "schema": closed}}
    assert json.loads(ask(client, MODEL, text=kind).output_text) == {"b": "x"}
    (call,) = ask(
        client, MODEL, tools=[FLAT], tool_choice={"type": "function", "name": "add"}
    ).output
    assert isinstance(json.loads(call.arguments)["a"], int)


def test_an_adapter_answers_as_itself_and_strangers_do_not_find_it(
    world: World, client: openai.OpenAI
) -> None:
    said = {ask(client, model, max_output_tokens=9).output_text for model in (MODEL, world.adapter)}
    assert len(said) == 2
    with pytest.raises(openai.NotFoundError):
        ask(client.with_options(api_key=STRANGER), world.adapter)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": []}, "input"),
    ],
)
def test_what_needs_state_is_refused_by_name(
    client: openai.OpenAI, body: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, MODEL, extra_body=body)
    assert refused.value.param == param


@pytest.mark.parametrize("item", ["text", 1, None, [], {"type": 5}, {"type": None}])
def test_an_item_that_is_none_is_refused_by_name(client: openai.OpenAI, item: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, MODEL, extra_body={"input": [{"role": "user", "content": "a"}, item]})
    assert (refused.value.param or "").removesuffix(".type") == "input[1]"
