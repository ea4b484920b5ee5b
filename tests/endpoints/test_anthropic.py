"""POST /messages through the real `anthropic` package."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from endpoints.conftest import (
    ARGUMENTS,
    CONTENT,
    KEY,
    MODEL,
    QUESTION,
    REASONING,
    STRANGER,
    TOOL,
    World,
)
from tinkex import ModelInput, SamplingParams

TOOLS = [{"name": "add", "input_schema": TOOL["function"]["parameters"]}]


@pytest.fixture(params=["", "/anthropic/api"])
def client(world: World, request: pytest.FixtureRequest) -> Iterator[anthropic.Anthropic]:
    url = world.url + request.param
    with anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0) as client:
        yield client


def ask(client: anthropic.Anthropic, model: str, **options: Any) -> Any:
    values: dict[str, Any] = {"messages": QUESTION, "max_tokens": 200}
    return client.messages.create(model=model, **{**values, **options}, extra_body=EXACT)


EXACT = {"temperature": 0}


def test_thinking_text_and_tool_use_are_blocks(world: World, client: anthropic.Anthropic) -> None:
    found = ask(client, world.caller, tools=TOOLS)
    thinking, text, use = found.content
    assert (thinking.type, thinking.thinking) == ("thinking", REASONING)
    assert (text.type, text.text) == ("text", CONTENT)
    assert (use.type, use.name, use.input) == ("tool_use", "add", json.loads(ARGUMENTS))
    assert found.stop_reason == "tool_use"
    assert found.tinkex["weights"]["path"] == world.caller


def test_a_stream_makes_the_same_message(world: World, client: anthropic.Anthropic) -> None:
    whole = ask(client, world.caller, tools=TOOLS)
    options: Any = {"model": world.caller, "messages": QUESTION, "max_tokens": 200, "tools": TOOLS}
    with client.messages.stream(**options, extra_body=EXACT) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 3
    for made, block in zip(final.content, whole.content, strict=True):
        assert made.model_dump(exclude={"id"}) == block.model_dump(exclude={"id"})
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_a_conversation_with_results_goes_on(world: World, client: anthropic.Anthropic) -> None:
    found = ask(client, world.caller, tools=TOOLS)
    use = found.content[-1]
    result = {
        "type": "tool_result",
        "tool_use_id": use.id,
        "content": [{"type": "text", "text": "2"}],
    }
    messages = [
        *QUESTION,
        {"role": "assistant", "content": found.content},
        {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
    ]
    options = {"system": "Be brief.", "tools": TOOLS, "messages": messages}
    count = client.messages.count_tokens(model=MODEL, **options)
    answer = ask(client, MODEL, **options, max_tokens=3)
    used = answer.usage
    assert count.input_tokens == used.input_tokens + used.cache_read_input_tokens
    assert answer.stop_reason == "max_tokens"


def test_same_tokens_as_the_native_sampler(world: World, client: anthropic.Anthropic) -> None:
    prompt = ModelInput.from_ints(world.text.chat(QUESTION, []).tokens)
    for model in (MODEL, world.adapter):
        params = SamplingParams(max_tokens=20, temperature=0)
        native = world.sampler(model).sample(prompt, 1, params).result(60)
        found = ask(client, model, max_tokens=20)
        expected = world.text.decode(native.sequences[0].tokens, skip_special_tokens=True)
        assert "".join(block.text for block in found.content) == expected


def test_a_forced_tool_is_used_by_its_schema(client: anthropic.Anthropic) -> None:
    choice = {"type": "tool", "name": "add"}
    found = ask(client, MODEL, tools=TOOLS, tool_choice=choice)
    (use,) = found.content
    assert use.name == "add"
    assert isinstance(use.input["a"], int)


def test_stop_sequences_are_named(client: anthropic.Anthropic) -> None:
    text = ask(client, MODEL, max_tokens=60).content[0].text
    stop = next(a + b for a, b in itertools.pairwise(text[3:]) if "\ufffd" not in a + b)
    found = ask(client, MODEL, max_tokens=60, stop_sequences=[stop])
    assert (found.stop_reason, found.stop_sequence) == ("stop_sequence", stop)
    assert "".join(block.text for block in found.content) == text[: text.index(stop)]


def test_refusals_have_that_apis_shape(world: World, client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        ask(client.with_options(api_key=STRANGER), world.adapter)
    assert unknown.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.AuthenticationError):
        ask(client.with_options(api_key="sk-ant-other"), MODEL)
    for body, name in (({"mcp_servers": [{}]}, "mcp_servers"), ({"surprise": 1}, "surprise")):
        with pytest.raises(anthropic.BadRequestError) as refused:
            client.messages.create(
                model=MODEL,
                max_tokens=5,
                messages=QUESTION,
                extra_body=body,
            )
        assert name in refused.value.message


BEGUN = [*QUESTION, {"role": "assistant", "content": "It is"}]


def test_a_last_message_of_the_assistants_is_continued(
    world: World, client: anthropic.Anthropic
) -> None:
    tokens = world.text.chat(BEGUN, [], continued=True).tokens
    assert world.text.decode(tokens).endswith("assistant\nIt is")
    native = world.sampler(MODEL).sample(
        ModelInput.from_ints(tokens), 1, SamplingParams(max_tokens=12, temperature=0)
    )
    expected = world.text.decode(native.result(60).sequences[0].tokens, skip_special_tokens=True)
    found = ask(client, MODEL, messages=BEGUN, max_tokens=12)
    assert "".join(block.text for block in found.content) == expected
    count = client.messages.count_tokens(model=MODEL, messages=BEGUN)
    assert count.input_tokens == len(tokens)


def test_what_cannot_be_continued_is_refused_by_name(client: anthropic.Anthropic) -> None:
    use = {"type": "tool_use", "id": "a", "name": "add", "input": {}}
    schema = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    for options, named in (
        ({"tools": TOOLS, "tool_choice": {"type": "any"}}, "tool_choice"),
        ({"output_config": schema}, "output_config.format"),
        ({"messages": [*QUESTION, {"role": "assistant", "content": [use]}]}, "tool_result"),
    ):
        with pytest.raises(anthropic.BadRequestError, match=named):
            ask(client, MODEL, **{"messages": BEGUN, **options})


def test_an_empty_last_message_is_a_new_turn(client: anthropic.Anthropic) -> None:
    messages = [*QUESTION, {"role": "assistant", "content": ""}]
    begun, new = (ask(client, MODEL, messages=each, max_tokens=9) for each in (messages, QUESTION))
    assert begun.content == new.content


def test_thinking_ends_when_its_budget_is_spent(world: World, client: anthropic.Anthropic) -> None:
    def thought(budget: int) -> Any:
        choice = {"type": "enabled", "budget_tokens": budget}
        return ask(client, world.caller, tools=TOOLS, thinking=choice).content

    assert [block.type for block in thought(199)] == ["thinking", "text", "tool_use"]
    first, *others = thought(5)  # <think>, a line break, two of Ä and h
    assert (first.type, first.thinking) == ("thinking", REASONING[:2])
    assert "thinking" not in {block.type for block in others}
    assert others


def test_a_budget_that_cannot_be_kept_is_refused_by_name(client: anthropic.Anthropic) -> None:
    for choice in (
        {"type": "enabled", "budget_tokens": 200},
        {"type": "disabled", "budget_tokens": 20},
        {"type": "enabled", "budget_tokens": 0},
    ):
        with pytest.raises(anthropic.BadRequestError, match=r"thinking\.budget_tokens"):
            ask(client, MODEL, thinking=choice)
