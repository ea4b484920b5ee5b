"""Keys kept between steps save work and change nothing: not when rows come, go or outgrow them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.sampling import DEVICE, make_sampler, prompt_of, results_of, sample
from tinkex.engine.messages import Sample, SampleResult
from tinkex.engine.sampling.cache import kept_attention
from tinkex.engine.sampling.cache.kept_attention import KeptAttention

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="a GPU reads pages where they lie")


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What every step was told when it asked whether its keys are kept."""
    found: list[bool] = []
    follow = KeptAttention.follow

    def noted(self: KeptAttention, chunks: Any) -> bool:
        found.append(follow(self, chunks))
        return found[-1]

    monkeypatch.setattr(KeptAttention, "follow", noted)
    return found


def without(**limits: Any) -> Any:
    sampler = make_sampler(**limits)
    sampler._forward._kept = None
    return sampler


def assert_alike(found: SampleResult, wanted: SampleResult) -> None:
    for one, other in zip(found.sequences, wanted.sequences, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)


def commands() -> list[Sample]:
    """Rows of several lengths that end at different times, the last far longer than the others."""
    lengths, news = (3, 17, 16, 40, 33, 140), (20, 9, 150, 31, 2, 30)
    return [
        sample(f"s{i}", prompt_of(i, length), seed=i, max_tokens=new)
        for i, (length, new) in enumerate(zip(lengths, news, strict=True))
    ]


def test_kept_keys_change_no_sample(answers: list[bool]) -> None:
    found = results_of(make_sampler(), *commands())
    for one, other in zip(found, results_of(without(), *commands()), strict=True):
        assert_alike(one, other)
    assert answers.count(True) > 100


def test_pages_that_another_request_had_before_hold_nothing_of_it(answers: list[bool]) -> None:
    """The second request gets the very pages of the first and comes to the same lengths."""
    sampler = make_sampler(pages=4)
    for seed in (1, 2):
        command = sample("a", prompt_of(seed, 20), seed=seed, max_tokens=12, num_samples=1)
        (found,) = results_of(sampler, command)
        (wanted,) = results_of(without(pages=4), command)
        assert_alike(found, wanted)
    assert True in answers


def test_rows_too_long_to_keep_are_gathered_step_by_step(
    answers: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_attention, "MAX_BYTES", 0)
    (found,) = results_of(make_sampler(), sample("a", prompt_of(1, 8), max_tokens=12))
    assert len(found.sequences[0].tokens) == 12
    assert True not in answers
