"""Decode steps in numpy give what the decoder gives, for all models, adapters and rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from support.sampling import (
    DEVICE,
    make_sampler,
    prompt_of,
    results_of,
    sample,
    tiny_decoder,
    tiny_folder,
    write_random_adapter,
)
from tinkex.engine.messages import AnswerForm, Failed, Grammar, SampleResult, SamplingControls
from tinkex.engine.sampling.cpu_decode import matrices
from tinkex.engine.sampling.cpu_decode.decode import CpuDecode, is_plain

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="a GPU has graphs")

RULES: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 1},
    {"temperature": 0.6, "seed": 2},
    {"temperature": 1.0, "top_k": 4, "seed": 3},
    {"temperature": 1.3, "top_p": 0.8, "seed": 4},
]


def sampler_of(model: str, *, numpy: bool, adapters: int = 0, tmp_path: Any = None) -> Any:
    sampler = make_sampler(tiny_decoder(model), tiny_folder(model))
    assert sampler._decode is not None
    if not numpy:
        sampler._decode = None
    for number in range(adapters):
        folder = tmp_path / str(number)
        if not folder.exists():
            write_random_adapter(folder, number, model=model)
        sampler.versions.add(f"w{number}", str(folder))
    return sampler


def assert_same(found: list[SampleResult], wanted: list[SampleResult]) -> None:
    for one, other in zip(found, wanted, strict=True):
        for mine, theirs in zip(one.sequences, other.sequences, strict=True):
            assert mine.tokens.tolist() == theirs.tokens.tolist()
            np.testing.assert_allclose(mine.logprobs, theirs.logprobs, atol=2e-5)


@pytest.mark.parametrize("model", ["tinkex/tiny-llama", "tinkex/tiny-qwen3"])
@pytest.mark.parametrize("rules", [RULES[:3], RULES], ids=["plain", "with shaped ones"])
def test_numpy_draws_what_the_decoder_draws(model: str, rules: list[dict[str, Any]]) -> None:
    commands = [
        sample(str(i), prompt_of(i, 5 + 7 * i), max_tokens=25 + i, **rule)
        for i, rule in enumerate(rules)
    ]
    found, wanted = (
        results_of(sampler_of(model, numpy=numpy), *commands) for numpy in (True, False)
    )
    assert_same(found, wanted)


def _with_grammar(sampler: Any, grammar: Grammar, commands: list[Any]) -> list[SampleResult]:
    sampler.grammars.compiled(grammar, "").result()
    try:
        return results_of(sampler, *commands)
    finally:
        sampler.grammars.close()


def test_numpy_draws_what_a_mask_leaves_as_the_decoder_does() -> None:
    """Of a grammar, of allowed tokens, and of rows that may draw anything beside them."""
    grammar = Grammar((AnswerForm(schema='{"type": "array", "items": {"type": "string"}}'),))
    some = SamplingControls(allowed_tokens=(65, 70, 200))
    commands = [
        replace(sample("0", prompt_of(0, 9), max_tokens=20, seed=1), grammar=grammar),
        replace(sample("1", prompt_of(1, 12), max_tokens=20, seed=2), controls=some),
        sample("2", prompt_of(2, 15), max_tokens=20, seed=3),
        replace(sample("3", prompt_of(3, 18), max_tokens=20, temperature=0.0), grammar=grammar),
    ]
    found, wanted = (
        _with_grammar(sampler_of("tinkex/tiny-llama", numpy=numpy), grammar, commands)
        for numpy in (True, False)
    )
    assert_same(found, wanted)
    assert set(found[1].sequences[0].tokens.tolist()) <= {65, 70, 200}


@pytest.mark.parametrize("room", [1 << 26, 0], ids=["kept", "too many to be kept"])
def test_every_row_has_its_own_adapter(
    room: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the matrices of all versions would take too much memory."""
    monkeypatch.setattr(matrices, "MAX_BYTES", room)
    commands = [
        sample(f"{i}", prompt_of(i, 12), weights=weights, max_tokens=20, seed=i)
        for i, weights in enumerate(["w0", "", "w1", "w0", "w1", ""])
    ]
    found, wanted = (
        results_of(
            sampler_of("tinkex/tiny-llama", numpy=numpy, adapters=2, tmp_path=tmp_path), *commands
        )
        for numpy in (True, False)
    )
    assert_same(found, wanted)
    tokens = {tuple(result.sequences[0].tokens.tolist()) for result in found}
    assert len(tokens) == len(commands)


def test_prompts_that_come_while_others_decode_change_nothing() -> None:
    sampler = sampler_of("tinkex/tiny-llama", numpy=True)
    alone = results_of(sampler, sample("a", prompt_of(1, 30), max_tokens=30, seed=5))
    sampler.submit(sample("a", prompt_of(1, 30), max_tokens=30, seed=5))
    found: dict[str, Any] = {}
    for number in range(20):
        sampler.submit(sample(str(number), prompt_of(number, 40 + number), seed=number))
        found |= {event.op: event.result for event in sampler.step()}
    while sampler.busy:
        found |= {event.op: event.result for event in sampler.step()}
    assert_same([found["a"]], alone)


def test_prompts_in_numpy_give_what_the_decoder_gives(tmp_path: Any) -> None:
    """Of one length and of others, found in the cache up to some page, cut between steps, forked,
    with and without an adapter."""
    shared = prompt_of(1, 40)
    commands = [
        sample("a", shared, max_tokens=3, seed=1),
        sample("b", np.append(shared[:32], prompt_of(2, 9)), max_tokens=3, seed=2),
        sample("c", np.append(shared[:32], prompt_of(3, 9)), max_tokens=3, seed=3),
        sample("d", prompt_of(4, 90), max_tokens=3, num_samples=3, seed=4),
        sample("e", prompt_of(5, 40), weights="w0", max_tokens=3, seed=5),
        sample("f", prompt_of(6, 1), max_tokens=3, seed=6),
    ]
    found, wanted = (
        [results_of(sampler, command)[0] for command in commands[:1]]
        + results_of(sampler, *commands[1:])
        for sampler in (
            sampler_of("tinkex/tiny-llama", numpy=numpy, adapters=1, tmp_path=tmp_path)
            for numpy in (True, False)
        )
    )
    assert_same(found, wanted)
    assert found[1].cached_tokens == 32


def test_prompts_whose_logprobs_are_asked_for_take_the_decoder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Theirs are the decoder's, as those of every other model are."""
    sampler = sampler_of("tinkex/tiny-llama", numpy=True)
    taken: list[str] = []
    hidden = sampler._forward.hidden

    def noted(chunks: Any) -> Any:
        taken.extend(chunk.branch.request.command.op for chunk in chunks)
        return hidden(chunks)

    monkeypatch.setattr(sampler._forward, "hidden", noted)
    results_of(sampler, sample("a", prompt_of(1, 20), max_tokens=2))
    results_of(sampler, sample("b", prompt_of(2, 20), asks={"prompt_logprobs": True}))
    assert taken == ["b"]


def test_what_is_not_finite_fails_the_request_and_nobody_else(tmp_path: Any) -> None:
    sampler = sampler_of("tinkex/tiny-llama", numpy=True, adapters=1, tmp_path=tmp_path)
    (wanted,) = results_of(sampler, sample("good", prompt_of(1, 9), seed=1))
    version = sampler.versions.acquire("w0")
    command = sample("bad", prompt_of(2, 9), weights="w0", seed=1, max_tokens=20)
    sampler.submit(command)
    sampler.submit(sample("good", prompt_of(1, 9), seed=1))
    events = sampler.step()
    for (part,) in version.products.values():
        part.a.fill_(torch.nan)
    sampler._decode._matrices._found.clear()
    while sampler.busy:
        events += sampler.step()
    failed = [event for event in events if isinstance(event, Failed)]
    assert [(event.op, event.kind) for event in failed] == [("bad", "user")]
    done = [event.result for event in events if not isinstance(event, Failed)]
    assert_same(done, [wanted])


def test_models_that_are_not_of_the_plain_kind_take_the_decoder() -> None:
    for model in ("tinkex/tiny-qwen3-moe", "tinkex/tiny-qwen3.5", "tinkex/tiny-gpt-oss"):
        assert not is_plain(tiny_decoder(model))
        assert make_sampler(tiny_decoder(model), tiny_folder(model))._decode is None


def test_a_version_has_its_matrices_from_its_first_step_on(tmp_path: Any) -> None:
    """A sample's digits do not depend on how often its weights were used."""
    sampler = sampler_of("tinkex/tiny-llama", numpy=True, adapters=1, tmp_path=tmp_path)
    command = sample("a", prompt_of(3, 20), weights="w0", seed=1, max_tokens=20)
    first, *later = (results_of(sampler, command)[0].sequences[0] for _ in range(4))
    fresh = sampler_of("tinkex/tiny-llama", numpy=True, adapters=1, tmp_path=tmp_path)
    again = results_of(fresh, command)[0].sequences[0]
    np.testing.assert_array_equal(first.logprobs, again.logprobs)
    for one in later[1:]:  # the first of these found its prompt in the cache
        np.testing.assert_array_equal(one.logprobs, later[0].logprobs)
    assert isinstance(sampler._decode, CpuDecode)
