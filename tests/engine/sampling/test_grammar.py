"""Answers drawn under a grammar are what the grammar says, and nobody else notices."""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from support.sampling import DEVICE, make_sampler, prompt_of, sample, tiny_folder, tokens_of
from tinkex.engine.errors import UserError
from tinkex.engine.messages import (
    AnswerForm,
    Done,
    Event,
    Failed,
    Grammar,
    Sample,
    SampleResult,
    SamplingControls,
)
from tinkex.engine.sampling.grammar import vocabulary
from tinkex.engine.sampling.model_end import read_ending
from tinkex.engine.sampling.sampler import Sampler

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "ü"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
TOKENIZER = read_ending(tiny_folder()).tokenizer


@pytest.fixture(scope="module")
def shared() -> Iterator[Sampler]:
    """One for many tests: its grammars stay compiled."""
    sampler = make_sampler(pages=2000, max_context=2048)
    yield sampler
    sampler.grammars.close()


def serve(sampler: Sampler, *commands: Sample) -> dict[str, Event]:
    """The last event of each, once all are answered."""
    woken = threading.Semaphore(0)
    last: dict[str, Event] = {}
    for command in commands:
        sampler.submit(command, woken.release)
    while len([e for e in last.values() if isinstance(e, Done | Failed)]) < len(commands):
        if not sampler.busy:
            assert woken.acquire(timeout=60)
            continue
        last.update({event.op: event for event in sampler.step()})
    return last


def result_of(event: Event) -> SampleResult:
    assert isinstance(event, Done), event
    assert isinstance(event.result, SampleResult)
    return event.result


def text_of(tokens: list[int]) -> str:
    assert TOKENIZER is not None
    return str(TOKENIZER.decode(tokens, skip_special_tokens=True))


def json_answer(schema: Any = None, thinking_end: str | None = None) -> Grammar:
    form = AnswerForm() if schema is None else AnswerForm(schema=json.dumps(schema))
    return Grammar((form,), thinking_end=thinking_end)


def asked(op: str, grammar: Grammar, seed: int = 0, **params: Any) -> Sample:
    settings = {"max_tokens": 900, "temperature": 1.0, "stop": None} | params
    asks = {"grammar": grammar} | settings.pop("asks", {})
    return sample(op, prompt_of(seed, 5 + seed % 40), seed=seed, asks=asks, **settings)


def random_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "pattern", "date"]
    if depth < 3:
        kinds += ["object", "array", "anyOf", "tuple"] * 3
    kind = rng.choice(kinds) if depth else "object"
    low = rng.randint(-50, 50)
    inner = lambda: random_schema(rng, depth + 1)  # noqa: E731 - as short as its uses
    match kind:
        case "object":
            names = rng.sample(["a", "b c", "ünï", 'q"', "long_name", "0"], rng.randint(1, 4))
            required = [name for name in names if rng.random() < 0.7]
            return {"type": "object", "properties": {name: inner() for name in names},
                    "required": required, "additionalProperties": False}  # fmt: skip
        case "array":
            return {"type": "array", "items": inner(), "minItems": rng.randint(0, 1), "maxItems": 2}
        case "tuple":
            return {"type": "array", "prefixItems": [inner(), inner()], "items": False,
                    "minItems": 2}  # fmt: skip
        case "anyOf":
            return {"anyOf": [inner(), inner()]}
        case "string":
            return {"type": "string", "minLength": rng.randint(0, 3), "maxLength": 6}
        case "pattern":
            return {"type": "string", "pattern": rng.choice([r"^[a-c]{2,4}$", r"^\d{3}-[xyz]$"])}
        case "date":
            return {"type": "string", "format": "date"}
        case "enum":
            return {"enum": ["red", 3, None, True, [1, "x"]][: rng.randint(1, 5)]}
        case "const":
            return {"const": rng.choice(["fixed", 7, {"k": [False]}])}
        case "integer":
            return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 100)}
        case "number":
            return {"type": "number", "minimum": 0, "maximum": 10}
    return {"type": kind}


@pytest.mark.parametrize("seed", range(6))
def test_answers_to_random_schemas_validate(seed: int, shared: Sampler) -> None:
    rng = random.Random(seed)
    schemas = {f"{seed}-{i}": random_schema(rng) for i in range(4)}
    commands = [
        asked(op, json_answer(schema), seed * 10 + i, temperature=(0.0, 0.7, 1.0, 1.6)[i])
        for i, (op, schema) in enumerate(schemas.items())
    ]
    ended = 0
    for op, event in serve(shared, *commands).items():
        (sequence,) = result_of(event).sequences
        if sequence.stop_reason == "stop":
            ended += 1
            answer = json.loads(text_of(sequence.tokens.tolist()))
            jsonschema_rs.validate(schemas[op], answer)
    assert ended >= 3, "answers come to an end"


def test_a_schema_that_refers_to_itself_is_followed(shared: Sampler) -> None:
    schema = {
        "$defs": {"tree": {"type": "object", "properties": {
            "v": {"type": "integer", "minimum": 0, "maximum": 9},
            "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}},
            "required": ["v"], "additionalProperties": False}},
        "$ref": "#/$defs/tree",
    }  # fmt: skip
    commands = [asked(f"t{i}", json_answer(schema), i) for i in range(4)]
    for event in serve(shared, *commands).values():
        (sequence,) = result_of(event).sequences
        if sequence.stop_reason == "stop":
            jsonschema_rs.validate(schema, json.loads(text_of(sequence.tokens.tolist())))


def test_without_a_schema_the_answer_is_some_json_object(shared: Sampler) -> None:
    commands = [asked(f"o{i}", json_answer(), i) for i in range(6)]
    ended = [result_of(event).sequences[0] for event in serve(shared, *commands).values()]
    texts = [text_of(s.tokens.tolist()) for s in ended if s.stop_reason == "stop"]
    assert texts
    assert all(isinstance(json.loads(text), dict) for text in texts)


def test_samples_of_one_prompt_each_follow_the_grammar_on_their_own(shared: Sampler) -> None:
    command = asked("many", json_answer(PERSON), 3)
    command = Sample("many", "", command.prompt, command.params, 5, grammar=command.grammar)
    texts = [text_of(t) for t in tokens_of(result_of(serve(shared, command)["many"]))]
    assert len(set(texts)) == 5
    for text in texts:
        jsonschema_rs.validate(PERSON, json.loads(text))


def test_tool_calls_name_a_tool_and_give_its_arguments(shared: Sampler) -> None:
    begin, end = '<tool_call>\n{"name": "%s", "arguments": ', "}\n</tool_call>"
    nothing = {"type": "object", "additionalProperties": False}
    grammar = Grammar((
        AnswerForm(begin % "look", json.dumps(PERSON), end),
        AnswerForm(begin % "stop", json.dumps(nothing), end),
    ))  # fmt: skip
    for i in range(6):
        (sequence,) = result_of(serve(shared, asked("t", grammar, i))["t"]).sequences
        assert sequence.stop_reason == "stop"
        tokens = sequence.tokens.tolist()
        assert TOKENIZER.token_to_id("<tool_call>") == tokens[0], "the token, not its letters"
        text = TOKENIZER.decode(tokens, skip_special_tokens=False)
        body = text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
        call = json.loads(body)
        assert call["name"] in ("look", "stop")
        if call["name"] == "look":
            jsonschema_rs.validate(PERSON, call["arguments"])


def test_parallel_calls_may_follow_each_other(shared: Sampler) -> None:
    form = AnswerForm("<f>", '{"const": 1}', "</f>")
    grammar = Grammar((form,), separator="\n")
    texts = set()
    for i in range(8):
        (sequence,) = result_of(
            serve(shared, asked("p", grammar, i, max_tokens=400))["p"]
        ).sequences
        text = text_of(sequence.tokens.tolist())
        if sequence.stop_reason == "stop":
            assert set(text.split("\n")) == {"<f>1</f>"}
            texts.add(text)
    assert texts


def test_special_tokens_are_drawn_as_tokens_and_not_spelled(shared: Sampler) -> None:
    assert TOKENIZER is not None
    mark = TOKENIZER.token_to_id("<|im_start|>")
    grammar = Grammar((AnswerForm("<|im_start|>go ", '{"const": 1}'),))
    (sequence,) = result_of(serve(shared, asked("m", grammar))["m"]).sequences
    tokens = sequence.tokens.tolist()
    assert tokens[0] == mark
    assert text_of(tokens[1:]) == "go 1"


def test_text_that_looks_like_a_token_is_spelled_where_it_is_text(shared: Sampler) -> None:
    schema = {"const": "<think> <|im_end|>"}
    (sequence,) = result_of(serve(shared, asked("c", json_answer(schema)))["c"]).sequences
    assert json.loads(text_of(sequence.tokens.tolist())) == schema["const"]


def test_thinking_may_end_with_a_token(shared: Sampler) -> None:
    assert TOKENIZER is not None
    end = TOKENIZER.token_to_id("</think>")
    bias = SamplingControls(logit_bias={end: 9.0})
    command = asked("t", json_answer({"const": 5}, "</think>"), asks={"controls": bias})
    tokens = result_of(serve(shared, command)["t"]).sequences[0].tokens.tolist()
    assert text_of(tokens[tokens.index(end) + 1 :]).strip() == "5"


def test_thinking_is_free_and_the_answer_after_it_is_not(shared: Sampler) -> None:
    grammar = json_answer({"type": "boolean"}, thinking_end="end")
    bias = SamplingControls(logit_bias={ord("e"): 6.0, ord("n"): 6.0, ord("d"): 6.0})
    found = 0
    commands = [asked(f"think {i}", grammar, i, asks={"controls": bias}) for i in range(4)]
    for event in serve(shared, *commands).values():
        (sequence,) = result_of(event).sequences
        if sequence.stop_reason == "stop":
            thought, _, answer = text_of(sequence.tokens.tolist()).partition("end")
            assert "end" not in thought
            assert json.loads(answer) in (True, False)
            found += 1
    assert found


def test_stop_ids_end_a_text_only_where_the_grammar_may_end(shared: Sampler) -> None:
    stop = 257
    grammar = json_answer({"type": "integer", "minimum": 10})
    for i in range(6):
        command = asked("n", grammar, i, stop=(stop,), asks={"controls": SamplingControls(
            logit_bias={stop: 20.0})})  # fmt: skip
        (sequence,) = result_of(serve(shared, command)["n"]).sequences
        tokens = sequence.tokens.tolist()
        assert tokens[-1] == stop
        assert int(text_of(tokens[:-1])) >= 10


@pytest.mark.parametrize("controlled", [False, True])
def test_logprobs_are_the_models_own(controlled: bool, shared: Sampler) -> None:
    controls = {"controls": SamplingControls(frequency_penalty=0.5)} if controlled else {}
    command = asked("own", json_answer(PERSON), 5, asks=controls)
    (sequence,) = result_of(serve(shared, command)["own"]).sequences
    prompt = [*command.prompt.tolist(), *sequence.tokens.tolist()]
    again = sample("score", prompt, max_tokens=0, asks={"prompt_logprobs": True})
    scores = result_of(serve(shared, again)["score"]).prompt_logprobs
    assert scores is not None
    assert scores[len(command.prompt) :] == pytest.approx(sequence.logprobs, abs=1e-4)


def test_rows_in_company_of_grammars_are_the_same_to_the_bit() -> None:
    def run(*commands: Sample) -> dict[str, Event]:
        sampler = make_sampler(pages=2000)
        try:
            return serve(sampler, *commands)
        finally:
            sampler.grammars.close()

    plain = [
        sample(f"p{i}", prompt_of(i, 9 + i), seed=i, temperature=0.8, max_tokens=40)
        for i in range(6)
    ]
    bound = [asked(f"g{i}", json_answer(PERSON), i, max_tokens=200) for i in range(4)]
    alone, together = run(*plain), run(*bound, *plain)
    for command in plain:
        assert tokens_of(result_of(alone[command.op])) == tokens_of(result_of(together[command.op]))
    for command in bound:
        own = run(command)[command.op]
        assert tokens_of(result_of(own)) == tokens_of(result_of(together[command.op]))


@pytest.mark.skipif(DEVICE != "cpu", reason="a GPU takes single rows as they are")
def test_guesses_change_nothing_about_a_constrained_sample(shared: Sampler) -> None:
    schema = {"type": "array", "items": {"enum": ["again and again"]}, "minItems": 3, "maxItems": 6}
    command = asked("guessed", json_answer(schema), 2, temperature=0.3)
    guessed = result_of(serve(shared, command)["guessed"])
    plain = make_sampler(pages=2000, max_context=2048)
    plain._with_guesses = lambda chunks: chunks
    try:
        assert tokens_of(guessed) == tokens_of(result_of(serve(plain, command)["guessed"]))
    finally:
        plain.grammars.close()


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (Grammar(()), "grammar: has no forms"),
        (Grammar((AnswerForm(schema="{"),)), "grammar: the schema is not JSON"),
        (json_answer([]), "grammar: the schema must be an object, not list"),
        (json_answer({"not": {"type": "string"}}), 'Unimplemented keys: \\["not"\\]'),
        (json_answer({"type": "strange"}), "grammar: "),
        (json_answer({"type": "string", "pattern": "("}), "regex parse error: unclosed group"),
        (
            json_answer({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}),
            "no text can satisfy it",
        ),
        (json_answer({"$ref": "#/$defs/none"}), "grammar: "),
        (json_answer({"enum": ["x" * vocabulary.MAX_CHARACTERS]}), "at most 262144 are allowed"),
    ],
)
def test_grammars_that_cannot_be_followed_are_refused(
    grammar: Grammar, message: str, shared: Sampler
) -> None:
    try:
        failed = serve(shared, asked("bad", grammar))["bad"]
    except UserError as error:
        failed = Failed("bad", "user", str(error))
    assert isinstance(failed, Failed)
    assert failed.kind == "user"
    assert re.search(message, failed.message)
    assert not shared.busy


def hostile(count: int) -> Grammar:
    """Deciding whether these patterns exclude each other takes for ever."""
    patterns = [{"type": "string", "pattern": f"(a|b)*a(a|b){{{i}}}"} for i in range(1, count)]
    return json_answer({"allOf": patterns})


def test_a_hostile_schema_ends_in_a_refusal_while_others_go_on(shared: Sampler) -> None:
    woken = threading.Event()
    shared.submit(asked("hostile", hostile(20)), woken.set)
    others = serve(shared, sample("plain", prompt_of(1, 9), max_tokens=30))
    assert isinstance(others["plain"], Done)
    assert woken.wait(timeout=120)
    (failed,) = shared.step()
    assert isinstance(failed, Failed)
    assert "to compile; simplify it" in failed.message
    assert isinstance(serve(shared, asked("after", json_answer(PERSON)))["after"], Done)


def test_lanes_take_turns_at_the_compiler() -> None:
    sampler = make_sampler()
    order: list[str] = []
    woken = threading.Semaphore(0)

    def note(op: str) -> None:
        order.append(op)
        woken.release()

    for i in range(5):
        flood = asked(f"flood{i}", json_answer({"const": i}))
        flood = Sample(flood.op, "", flood.prompt, flood.params, lane="a", grammar=flood.grammar)
        sampler.submit(flood, lambda op=flood.op: note(op))
    one = asked("one", json_answer({"const": "x"}))
    one = Sample("one", "", one.prompt, one.params, lane="b", grammar=one.grammar)
    sampler.submit(one, lambda: note("one"))
    for _ in range(6):
        assert woken.acquire(timeout=60)
    sampler.grammars.close()
    assert order.index("one") <= 2


def test_a_sample_can_be_cancelled_while_its_grammar_is_compiled() -> None:
    sampler = make_sampler()
    sampler.submit(asked("gone", hostile(20)))
    assert not sampler.busy
    failed = sampler.cancel("gone")
    assert isinstance(failed, Failed)
    assert failed.kind == "cancelled"
    assert sampler.pool.used == 0
    assert not sampler._compiling
    sampler.grammars.close()


def test_without_the_library_samples_with_a_grammar_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tinkex.engine.sampling.grammar import compiling

    monkeypatch.setattr(compiling, "is_installed", lambda: False)
    sampler = make_sampler()
    with pytest.raises(UserError, match="install llguidance"):
        sampler.submit(asked("x", json_answer()))
    assert not sampler.busy
