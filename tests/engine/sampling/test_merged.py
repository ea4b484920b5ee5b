"""An adapter merged into a small model's matrices is the same one, and only where it is alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.sampling import (
    DEVICE,
    make_sampler,
    prompt_of,
    results_of,
    sample,
    tokens_of,
    write_random_adapter,
)
from tinkex.engine.adapters import merged

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="on a GPU products are shared instead")


def sampler_of(folder: Path, count: int) -> Any:
    sampler = make_sampler()
    for index in range(count):
        path = write_random_adapter(folder / str(index), index, 4, train_mlp=index != 1)
        sampler.versions.add(f"w{index}", str(path))
    return sampler


def test_an_adapter_that_is_used_for_a_while_is_merged_and_samples_stay_the_same(
    tmp_path: Path,
) -> None:
    sampler, apart_sampler = sampler_of(tmp_path, 2), sampler_of(tmp_path, 2)
    apart_sampler._forward._merging = None
    for weights in ("w0", "w1"):
        command = sample("a", prompt_of(1, 20), weights=weights, seed=1, max_tokens=30)
        (once,), (apart,) = results_of(sampler, command), results_of(apart_sampler, command)
        assert tokens_of(once) == tokens_of(apart)
        np.testing.assert_allclose(
            once.sequences[0].logprobs, apart.sequences[0].logprobs, atol=1e-4
        )
    assert len(sampler._forward._merging._kept) == 2


def test_two_adapters_in_one_step_and_the_base_model_are_not_merged(tmp_path: Path) -> None:
    sampler = sampler_of(tmp_path, 2)
    results_of(
        sampler, *(sample(w, prompt_of(1, 9), weights=w, max_tokens=30) for w in ("w0", "w1"))
    )
    results_of(sampler, sample("base", prompt_of(1, 9), max_tokens=30))
    assert not sampler._forward._merging._kept


def test_no_more_is_kept_than_there_is_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merged, "_USES", 1)
    sampler = sampler_of(tmp_path, 3)
    sampler._forward._merging._room = 2
    for weights in ("w0", "w1", "w2", "w0"):
        results_of(sampler, sample("a", prompt_of(1, 9), weights=weights, max_tokens=3))
    assert [identity for identity, _ in sampler._forward._merging._kept] == [3, 1]
