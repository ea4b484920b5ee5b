"""Captured decode steps give the numbers that the step-by-step path gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.hf_models import FAMILIES, save_reference
from support.sampling import (
    DEVICE,
    compiled_results_of,
    make_sampler,
    prompt_of,
    results_of,
    sample,
    tokens_of,
    write_random_adapter,
)
from tinkex.engine.messages import AnswerForm, Grammar, SamplingControls
from tinkex.engine.model.loading import load_decoder
from tinkex.engine.sampling.draw import SAMPLE, draw_key, draw_keys, key_state

gpu = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def without_graphs(sampler: Any) -> Any:
    sampler._graphs = None
    return sampler


def assert_same(found: list[Any], wanted: list[Any]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert tokens_of(one) == tokens_of(other)
        for a, b in zip(one.sequences, other.sequences, strict=True):
            np.testing.assert_allclose(a.logprobs, b.logprobs, atol=2e-4)


def test_keys_made_together_are_the_keys_made_one_by_one() -> None:
    seeds, positions = [0, 1, 2**63, 2**64 - 1], [0, 5, 1000, 2**20]
    states = np.array([key_state(seed, SAMPLE, 3) for seed in seeds], np.uint64)
    found = draw_keys(states, np.array(positions, np.uint64))
    wanted = [draw_key(s, SAMPLE, 3, p) for s, p in zip(seeds, positions, strict=True)]
    assert [tuple(pair) for pair in found.T.tolist()] == [tuple(key) for key in wanted]


@gpu
@needs_gpu
@pytest.mark.parametrize("family", list(FAMILIES))
def test_every_family_decodes_the_same_with_and_without_graphs(family: str, tmp_path: Path) -> None:
    save_reference(family, tmp_path)
    decoder = load_decoder(tmp_path, DEVICE, torch.float32)
    commands = [
        sample(f"s{i}", prompt_of(i, length), temperature=(0.0, 1.0, 0.7)[i % 3], seed=i,
               max_tokens=40)
        for i, length in enumerate((1, 45, 70, 16, 15))
    ]  # fmt: skip
    wanted = results_of(without_graphs(make_sampler(decoder, tmp_path)), *commands)
    assert_same(results_of(make_sampler(decoder, tmp_path), *commands), wanted)


@gpu
@needs_gpu
def test_any_mix_of_adapters_filters_and_samples_decodes_the_same(tmp_path: Path) -> None:
    ranks = (2, 32, 7, 16, 1)
    folders = {f"w{i}": write_random_adapter(tmp_path / str(i), i, r) for i, r in enumerate(ranks)}

    def fresh() -> Any:
        sampler = make_sampler(pages=300)
        for name, folder in folders.items():
            sampler.versions.add(name, str(folder))
        return sampler

    names = ["", *folders]
    commands = [
        sample(f"s{i}", prompt_of(i, 3 + 7 * i % 50), weights=names[i % 6 if i < 24 else 2],
               stop=(7, 19) if i % 2 else (),
               seed=i, temperature=(1.0, 0.7, 0.0)[i % 3], num_samples=1 + i % 3,
               top_p=0.9 if i >= 36 else 1.0, max_tokens=10 + 5 * (i % 5))
        for i in range(40)
    ]  # fmt: skip
    assert_same(results_of(fresh(), *commands), results_of(without_graphs(fresh()), *commands))


@gpu
@needs_gpu
def test_preempted_and_cancelled_branches_leave_the_others_numbers_alone() -> None:
    commands = [sample(f"s{i}", prompt_of(i, 20), seed=i, max_tokens=60) for i in range(12)]
    wanted = results_of(without_graphs(make_sampler()), *commands)
    tight = make_sampler(pages=30)
    assert_same(results_of(tight, *commands), wanted)
    assert tight.scheduler.preemptions > 0
    tight.submit(sample("gone", prompt_of(5, 20), max_tokens=60))
    for _ in range(5):
        tight.step()
    assert tight.cancel("gone") is not None
    assert tight.pool.used == 0
    again = [sample("gone", prompt_of(0, 20), seed=0, max_tokens=60), *commands[1:3]]
    assert_same(results_of(tight, *again), wanted[:3])
    assert tight.pool.used == 0


@gpu
@needs_gpu
def test_steps_captured_in_idle_time_change_no_sample(tmp_path: Path) -> None:
    """They run once as they are captured, while buffers still name the last step's rows."""
    folder = write_random_adapter(tmp_path / "a", 1, 32)

    def served(prepared: int) -> list[Any]:
        sampler = make_sampler(pages=300)
        sampler.versions.add("w", str(folder))
        found = []
        for turn in range(3):
            commands = [
                sample(f"{turn}-{i}", prompt_of(i, 40), weights="w", seed=i, max_tokens=24)
                for i in range(3)
            ]
            found.extend(results_of(sampler, *commands))
            for _ in range(prepared):
                sampler.prepare()
        return found

    assert_same(served(12), served(0))


@gpu
@needs_gpu
def test_masked_rows_and_their_company_decode_the_same_with_and_without_graphs() -> None:
    """Grammars and allowed tokens are a mask in the captured draw; other controls are drawn beside
    it. None of them changes a row of the batch that has none."""
    answer = Grammar((AnswerForm(schema='{"type": "object", "maxProperties": 3}'),))
    asks: list[dict[str, Any]] = [
        {},
        {"grammar": answer},
        {"controls": SamplingControls(allowed_tokens=(40, 41, 42, 90, 91))},
        {"grammar": answer, "controls": SamplingControls(allowed_tokens=tuple(range(32, 126)))},
    ]
    others: list[dict[str, Any]] = [
        {"controls": SamplingControls(frequency_penalty=0.7, logit_bias={44: 2.0})},
        {"grammar": answer, "controls": SamplingControls(min_p=0.05)},
    ]

    def commands(kinds: list[dict[str, Any]]) -> list[Any]:
        return [
            sample(f"s{i}", prompt_of(i, 4 + 5 * i), seed=i, temperature=(1.0, 0.0, 0.7)[i % 3],
                   max_tokens=60, asks=kinds[i % len(kinds)])
            for i in range(18)
        ]  # fmt: skip

    for kinds in (asks, asks + others):
        captured, plain = make_sampler(), without_graphs(make_sampler())
        found = compiled_results_of(captured, *commands(kinds))
        wanted = compiled_results_of(plain, *commands(kinds))
        assert_same(found, wanted)
        captured.grammars.close()
        plain.grammars.close()
