"""POST /completions through the real `openai` package: the native sampler's answers, exactly."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import openai
import pytest

from endpoints.conftest import KEY, LAST_DIGITS, MODEL, STRANGER, World
from tinkex import ModelInput, SamplingParams

PROMPT = "Grüße, 日本"


@pytest.fixture(params=["/v1", "/oai/api/v1"])
def client(world: World, request: pytest.FixtureRequest) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=world.url + request.param, api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture(params=["base", "adapter"])
def model(world: World, request: pytest.FixtureRequest) -> str:
    return MODEL if request.param == "base" else world.adapter


def test_same_tokens_and_logprobs_as_the_native_sampler_for_the_same_seed(
    world: World, client: openai.OpenAI, model: str
) -> None:
    tokens = list(PROMPT.encode())
    params = SamplingParams(max_tokens=12, seed=7, temperature=0.9, top_p=0.95, top_k=50)
    native = world.sampler(model).sample(ModelInput.from_ints(tokens), 2, params).result(60)
    found = client.completions.create(
        model=model,
        prompt=tokens,
        max_tokens=12,
        seed=7,
        temperature=0.9,
        top_p=0.95,
        n=2,
        logprobs=0,
        extra_body={"top_k": 50, "return_token_ids": True},
    )
    assert [choice.token_ids for choice in found.choices] == [
        sequence.tokens for sequence in native.sequences
    ]
    logprobs = [choice.logprobs.token_logprobs for choice in found.choices if choice.logprobs]
    for found_logprobs, sequence in zip(logprobs, native.sequences, strict=True):
        assert found_logprobs == pytest.approx(sequence.logprobs, abs=LAST_DIGITS)


def test_an_adapter_answers_as_itself_and_says_so(world: World, client: openai.OpenAI) -> None:
    raw = client.completions.with_raw_response
    answers = {}
    for model in (MODEL, world.adapter):
        response = raw.create(model=model, prompt=PROMPT, max_tokens=16, temperature=0)
        answers[model] = response.parse().choices[0].text
        weights = response.parse().tinkex["weights"]
        assert weights["base_model"] == MODEL
        assert response.headers["x-tinkex-weights"] == model
        assert weights["path"] == (None if model == MODEL else model)
        assert weights["hash"] == response.headers.get("x-tinkex-weights-hash")
    assert answers[MODEL] != answers[world.adapter]
    assert len(weights["hash"]) == 64


def test_another_keys_adapter_does_not_exist(world: World) -> None:
    with openai.OpenAI(base_url=f"{world.url}/v1", api_key=STRANGER, max_retries=0) as stranger:
        with pytest.raises(openai.NotFoundError) as refused:
            stranger.completions.create(model=world.adapter, prompt="x")
        missing = world.adapter.replace("mine", "nobodys")
        with pytest.raises(openai.NotFoundError) as unknown:
            stranger.completions.create(model=missing, prompt="x")
    assert str(refused.value).replace("mine", "nobodys") == str(unknown.value)


def test_a_stream_has_the_same_text_and_never_half_a_character(client: openai.OpenAI) -> None:
    options = {"model": MODEL, "prompt": [PROMPT, "x"], "max_tokens": 40, "seed": 5, "n": 2}
    whole = client.completions.create(**options)
    parts: dict[int, str] = {}
    usage = None
    for chunk in client.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            parts[choice.index] = parts.get(choice.index, "") + choice.text
    assert [parts[place] for place in range(4)] == [choice.text for choice in whole.choices]
    assert usage == whole.usage.model_copy(
        update={"prompt_tokens_details": usage.prompt_tokens_details}
    )


def test_stop_strings_end_a_text_before_them_whole_and_streamed(client: openai.OpenAI) -> None:
    options = {"model": MODEL, "prompt": PROMPT, "max_tokens": 200, "seed": 5}
    text = client.completions.create(**options).choices[0].text
    stop = next(
        text[place : place + 2]
        for place in itertools.count(5)
        if "\ufffd" not in text[place : place + 2]
    )
    found = client.completions.create(**options, stop=[stop])
    assert found.choices[0].text == text[: text.index(stop)]
    assert found.choices[0].finish_reason == "stop"
    chunks = client.completions.create(**options, stop=stop, stream=True)
    streamed = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    assert streamed == found.choices[0].text


def test_echo_with_logprobs_scores_a_prompt_as_the_native_client_does(
    world: World, client: openai.OpenAI, model: str
) -> None:
    prompts = [list(b"one prompt"), list(b"another")]
    native = [
        world.sampler(model).compute_logprobs(ModelInput.from_ints(prompt)).result(60)
        for prompt in prompts
    ]
    for max_tokens in (0, 1):
        found = client.completions.create(
            model=model, prompt=prompts, max_tokens=max_tokens, echo=True, logprobs=1, temperature=0
        )
        for prompt, expected, choice in zip(prompts, native, found.choices, strict=True):
            table = choice.logprobs
            assert table is not None
            assert table.token_logprobs is not None
            assert table.token_logprobs[: len(prompt)] == expected
            assert len(table.token_logprobs) == len(prompt) + max_tokens
            assert choice.text.startswith(bytes(prompt).decode())


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"surprise": 1}, "surprise"),
        ({"temperature": "hot"}, "temperature"),
        ({"prompt": [["x"]]}, "prompt"),
        ({"prompt": [1, 999]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"max_tokens": 10**6}, "max_tokens"),
        ({"stop": [""]}, "stop[0]"),
        ({"stream_options": {"other": True}}, "stream_options.other"),
        ({"prompt": ["x"] * 2048, "n": 3}, "n"),
        ({"prompt": [[1] * 4000] * 5, "logprobs": 250, "echo": True}, "logprobs"),
        ({"n": 1024, "logprobs": 1000, "max_tokens": 5}, "logprobs"),
        ({"logit_bias": {"１": 1}}, "logit_bias.１"),
        ({"logit_bias": {str(i): "x" for i in range(2000)}}, "logit_bias"),
        ({"allowed_token_ids": ["x"] * 2000}, "allowed_token_ids[0]"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    client: openai.OpenAI, body: dict[str, object], param: str
) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            client.completions.create(
                model=MODEL, prompt="x", extra_body=body, stream=stream, max_tokens=4
            )
        assert refused.value.param == param
        assert param.partition("[")[0] in refused.value.message
        assert refused.value.type == "invalid_request_error"


def test_keys_and_names_that_are_unknown_are_told_so(world: World) -> None:
    with openai.OpenAI(base_url=f"{world.url}/v1", api_key="sk-other", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError):
            client.completions.create(model=MODEL, prompt="x")
        with pytest.raises(openai.NotFoundError) as unknown:
            client.with_options(api_key=KEY).completions.create(model="gpt-4", prompt="x")
    assert unknown.value.code == "model_not_found"
    assert MODEL in unknown.value.message


def test_a_streams_prompt_cannot_be_scored_and_that_is_said(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="not streamed") as caught:
        client.completions.create(model=MODEL, prompt="a", echo=True, logprobs=1, stream=True)
    assert caught.value.param == "logprobs"
