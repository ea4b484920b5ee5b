"""Keys kept between steps save work and change nothing: not when rows come, go or outgrow them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.sampling import DEVICE, make_sampler, prompt_of, results_of, sample
from tinkex.engine.messages import Sample, SampleResult
from tinkex.engine.sampling.cache import kept_rows
from tinkex.engine.sampling.cache.kept_rows import KeptRows

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="a GPU reads pages where they lie")


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What every step was told when it asked whether its keys are kept."""
    found: list[bool] = []
    follow = KeptRows.follow

    def noted(self: KeptRows, chunks: Any) -> bool:
        found.append(follow(self, chunks))
        return found[-1]

    monkeypatch.setattr(KeptRows, "follow", noted)
    return found


def kept_by(way: str, **limits: Any) -> Any:
    """A sampler that keeps keys for numpy's steps or for torch's, or none."""
    sampler = make_sampler(**limits)
    assert sampler._decode is not None
    if way != "numpy":
        sampler._decode = None
    if way != "torch":
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


@pytest.mark.parametrize("way", ["numpy", "torch"])
def test_kept_keys_change_no_sample(way: str, answers: list[bool]) -> None:
    found = results_of(kept_by(way), *commands())
    for one, other in zip(found, results_of(kept_by("none"), *commands()), strict=True):
        assert_alike(one, other)
    assert answers.count(True) > 100


@pytest.mark.parametrize("way", ["numpy", "torch"])
def test_pages_that_another_request_had_before_hold_nothing_of_it(
    way: str, answers: list[bool]
) -> None:
    """The second request gets the very pages of the first and comes to the same lengths."""
    sampler = kept_by(way, pages=4)
    for seed in (1, 2):
        command = sample("a", prompt_of(seed, 20), seed=seed, max_tokens=12, num_samples=1)
        (found,) = results_of(sampler, command)
        (wanted,) = results_of(kept_by("none", pages=4), command)
        assert_alike(found, wanted)
    assert True in answers


def test_rows_too_long_to_keep_are_gathered_step_by_step(
    answers: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_rows, "MAX_BYTES", 0)
    (found,) = results_of(make_sampler(), sample("a", prompt_of(1, 8), max_tokens=12))
    assert len(found.sequences[0].tokens) == 12
    assert True not in answers


def test_rows_that_come_last_and_rows_that_go_first_leave_the_others_where_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    laid_out: list[int] = []
    new_layout = KeptRows._new_layout

    def noted(self: KeptRows, branches: Any, lengths: Any) -> Any:
        laid_out.append(len(branches))
        return new_layout(self, branches, lengths)

    monkeypatch.setattr(KeptRows, "_new_layout", noted)
    sampler, alone = kept_by("numpy"), kept_by("none")
    wanted = results_of(alone, *(sample(str(i), prompt_of(i, 9), max_tokens=20) for i in range(4)))
    found: dict[str, Any] = {}
    for number in range(4):
        sampler.submit(sample(str(number), prompt_of(number, 9), max_tokens=20))
        for _ in range(3):
            sampler.step()
    while sampler.busy:
        found |= {event.op: event.result for event in sampler.step()}
    for number, one in enumerate(wanted):
        assert_alike(found[str(number)], one)
    assert laid_out == [1], "the first row came alone; all that followed fitted beside it"
