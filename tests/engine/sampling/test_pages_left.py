"""Whoever had pages of the cache before leaves nothing in them that others could notice.

Keys and values of weights that diverged are NaN or infinite. A page is handed on when their samples
have ended, and its next owner reads to its end, where a mask cannot help: NaN less infinity is NaN.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.sampling import (
    events_of,
    make_sampler,
    prompt_of,
    results_of,
    sample,
    tiny_decoder,
    tiny_folder,
    write_random_adapter,
)
from tinkex.engine.messages import Done, Failed, Sample, SampleResult

MODELS = [
    "tinkex/tiny-llama",
    "tinkex/tiny-qwen3-moe",
    "tinkex/tiny-qwen3.5",
    "tinkex/tiny-gpt-oss",
]


def sampler_of(model: str) -> Any:
    return make_sampler(tiny_decoder(model), tiny_folder(model), step_tokens=48)


def commands() -> list[Sample]:
    """Prompts in one piece and in several, forks, scores, and samples of many lengths."""
    scored = {"prompt_logprobs": True}
    return [
        sample(f"s{i}", prompt_of(i, 3 + 17 * i), seed=i, max_tokens=12 + 3 * i,
               num_samples=1 + i % 3, asks=scored if i % 4 == 3 else None)
        for i in range(8)
    ]  # fmt: skip


def assert_same(found: list[SampleResult], expected: list[SampleResult]) -> None:
    for one, other in zip(found, expected, strict=True):
        for own, its in zip(one.sequences, other.sequences, strict=True):
            assert own.tokens.tolist() == its.tokens.tolist()
            np.testing.assert_array_equal(own.logprobs, its.logprobs)


@pytest.mark.parametrize("left", [np.nan, np.inf, 3e38])
@pytest.mark.parametrize("model", MODELS)
def test_whatever_a_page_held_changes_nothing_for_its_next_owner(model: str, left: float) -> None:
    dirty = sampler_of(model)
    dirty._cache._store[:, 1:] = left  # page 0 is nobody's
    if dirty._states is not None:
        for store in dirty._states._stores:
            store.fill_(left)
    assert_same(results_of(dirty, *commands()), results_of(sampler_of(model), *commands()))


def test_weights_that_diverged_fail_their_own_samples_alone(tmp_path: Path) -> None:
    """Six of eight samples of another tenant failed as if its own weights had diverged."""
    sampler = sampler_of("tinkex/tiny-llama")
    sampler.versions.add("diverged", str(write_random_adapter(tmp_path, 1, size=1e20)))
    theirs = [sample(f"d{i}", prompt_of(i, 95), weights="diverged") for i in range(9)]
    assert all(isinstance(event, Failed) for event in events_of(sampler, theirs))
    assert_same(
        results_of(sampler, *commands()), results_of(sampler_of("tinkex/tiny-llama"), *commands())
    )


@pytest.mark.parametrize("model", MODELS)
def test_nor_do_they_beside_samples_of_others(model: str, tmp_path: Path) -> None:
    """Of adapters the later one's rows come behind the other's in a step."""

    def fresh() -> Any:
        sampler = sampler_of(model)
        for name, size in (("diverged", 1e20), ("own", 0.3)):
            folder = write_random_adapter(tmp_path / name, 1, size=size, model=model)
            sampler.versions.add(name, str(folder))
        return sampler

    own = [replace(each, weights="own" if at % 2 else "") for at, each in enumerate(commands())]
    theirs = [sample(f"d{i}", prompt_of(i, 9 + 7 * i), weights="diverged") for i in range(8)]
    mixed = [each for pair in zip(theirs, own, strict=True) for each in pair]
    found = {event.op: event for event in events_of(fresh(), mixed)}
    for command, alone in zip(own, results_of(fresh(), *own), strict=True):
        event = found[command.op]
        assert isinstance(event, Done), event
        assert isinstance(event.result, SampleResult)
        for one, other in zip(event.result.sequences, alone.sequences, strict=True):
            assert one.tokens.tolist() == other.tokens.tolist()
