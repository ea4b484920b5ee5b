"""Whoever had pages of the cache before leaves nothing in them that others could notice.

Keys and values of weights that diverged are NaN or infinite. A page is handed on when their samples
have ended, and its next owner reads to its end, where a mask cannot help: NaN less infinity is NaN.
"""

from __future__ import annotations

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
from tinkex.engine.messages import Failed, Sample, SampleResult

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
