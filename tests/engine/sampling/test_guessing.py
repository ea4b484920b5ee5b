"""Guesses save steps and change nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.sampling import (
    DEVICE,
    make_sampler,
    prompt_of,
    results_of,
    sample,
    tiny_decoder,
    tiny_folder,
)
from tinkex.engine.cpu.half_weights import FREE_ROWS
from tinkex.engine.messages import Sample, SampleResult
from tinkex.engine.sampling.speculation import Past

on_a_cpu = pytest.mark.skipif(DEVICE != "cpu", reason="a GPU takes single rows as they are")


HYBRID = "tinkex/tiny-qwen3.5"
MODELS = ["tinkex/tiny-llama", HYBRID]


def past_of(*tokens: int) -> Past:
    past = Past()
    past.extend(tokens)
    return past


def test_the_end_of_a_sequence_is_continued_as_it_was_the_last_time() -> None:
    assert past_of(1, 2, 3, 4, 1, 2).guess(2) == (3, 4)
    assert past_of(1, 2, 3, 9, 2, 5, 1, 2).guess(1) == (3,), "a pair says more than its last token"
    assert past_of(7, 1, 8, 2, 8, 3, 8).guess(1) == (3,), "the latest time counts"


def test_a_guess_longer_than_what_is_known_repeats_the_loop() -> None:
    assert past_of(5, 6, 7, 5, 6).guess(7) == (7, 5, 6, 7, 5, 6, 7)
    assert past_of(4, 4).guess(3) == (4, 4, 4)


def test_guesses_that_never_come_true_end_and_one_that_does_brings_them_back() -> None:
    past, misses = past_of(1), 0
    for token in range(100, 120):
        past.extend((1,))
        misses += past.guess(1) != ()
        past.extend((token,))
    assert misses == 4, "each was another token than the last time"
    past.extend((1, 119))
    assert past.guess(1) == (1,), "pairs are still followed"
    past.extend((1,))
    past.extend((7, 1))
    assert past.guess(1) == (7,), "one that came true makes up for four"


def test_nothing_is_guessed_from_nothing() -> None:
    assert past_of().guess(3) == ()
    assert past_of(1, 2, 3).guess(3) == ()


@on_a_cpu
@pytest.mark.parametrize(
    ("params", "asks"),
    [
        ({"temperature": 0.0}, {}),
        ({"temperature": 0.7, "seed": 3}, {"topk_sample_logprobs": 3}),
        ({"temperature": 1.5, "top_k": 5, "top_p": 0.9, "seed": 4}, {}),
        ({"temperature": 0.0, "max_tokens": 3}, {}),
    ],
)
@pytest.mark.parametrize("requests", [1, 2, 3])
@pytest.mark.parametrize("model", MODELS)
def test_with_and_without_guesses_the_tokens_are_the_same(
    model: str, params: dict[str, Any], asks: dict[str, Any], requests: int
) -> None:
    commands = [
        sample(
            f"s{i}", prompt_of(i, 5 + 14 * i, vocab=9), asks=asks, **({"max_tokens": 60} | params)
        )
        for i in range(requests)
    ]
    steps, plain = run(commands, guessing=False, model=model)
    fewer, guessed = run(commands, guessing=True, model=model)
    assert fewer <= steps
    for mine, theirs in zip(guessed, plain, strict=True):
        for own, other in zip(mine.sequences, theirs.sequences, strict=True):
            np.testing.assert_array_equal(own.tokens, other.tokens)
            np.testing.assert_allclose(own.logprobs, other.logprobs, atol=1e-4)
            if own.topk is not None and other.topk is not None:
                np.testing.assert_array_equal(own.topk.ids, other.topk.ids)
                assert len(own.topk.ids) == len(own.tokens)


@on_a_cpu
@pytest.mark.parametrize("model", MODELS)
def test_text_that_repeats_itself_takes_fewer_steps(model: str) -> None:
    asked = {"temperature": 0.0, "max_tokens": 200}
    command = sample("loop", np.tile(prompt_of(1, 5), 4), **asked)
    steps, (plain,) = run([command], guessing=False, model=model)
    fewer, (guessed,) = run([command], guessing=True, model=model)
    assert fewer < steps
    np.testing.assert_array_equal(guessed.sequences[0].tokens, plain.sequences[0].tokens)


@on_a_cpu
def test_what_is_kept_of_states_is_what_confirmed_tokens_left() -> None:
    """A snapshot at the end of a page that a guess filled is found by who asks for that prefix."""
    sampler = make_sampler(tiny_decoder(HYBRID), tiny_folder(HYBRID), max_context=512)
    asked = {"temperature": 0.0, "max_tokens": 90}
    first = results_of(sampler, sample("a", np.tile(prompt_of(1, 5), 4), **asked))[0]
    longer = np.concatenate([np.tile(prompt_of(1, 5), 4), first.sequences[0].tokens])
    again = results_of(sampler, sample("b", longer, seed=1, max_tokens=20))[0]
    fresh = make_sampler(tiny_decoder(HYBRID), tiny_folder(HYBRID), max_context=512)
    wanted = results_of(fresh, sample("b", longer, seed=1, max_tokens=20))[0]
    assert again.cached_tokens > 64
    np.testing.assert_array_equal(again.sequences[0].tokens, wanted.sequences[0].tokens)
    one, other = again.sequences[0].logprobs, wanted.sequences[0].logprobs
    np.testing.assert_allclose(one, other, atol=1e-4)


@on_a_cpu
def test_a_stop_token_within_confirmed_guesses_ends_the_sequence_there() -> None:
    free = sample("free", prompt_of(1, 20), temperature=0.0, max_tokens=120)
    _, (result,) = run([free], guessing=False)
    tokens = result.sequences[0].tokens
    for stop in {int(tokens[at]) for at in (7, 40, 90)}:
        command = sample("held", prompt_of(1, 20), temperature=0.0, max_tokens=120, stop=(stop,))
        _, (held,) = run([command], guessing=True)
        first = int(np.flatnonzero(tokens == stop)[0])
        np.testing.assert_array_equal(held.sequences[0].tokens, tokens[: first + 1])
        assert held.sequences[0].stop_reason == "stop"


def run(
    commands: list[Sample], *, guessing: bool, model: str = MODELS[0]
) -> tuple[int, list[SampleResult]]:
    """How many steps these take, and their results in order."""
    sampler = make_sampler(tiny_decoder(model), tiny_folder(model), max_context=512)
    sampler._guess_rows = FREE_ROWS if guessing else 0
    steps = 0
    step = sampler.step

    def counted() -> Any:
        nonlocal steps
        steps += 1
        return step()

    sampler.step = counted
    results = results_of(sampler, *commands)
    assert sampler.pool.used == 0
    return steps, results
