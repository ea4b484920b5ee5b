"""What sampling promises holds for models of every kind of block, not for dense ones alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.sampling import (
    make_sampler,
    prompt_of,
    results_of,
    sample,
    tiny_decoder,
    tiny_folder,
    write_random_adapter,
)
from support.training import call, save_run, train
from tinkex.engine.messages import (
    CreateRun,
    Datum,
    LoadRun,
    LoraSpec,
    Sample,
    SampleResult,
    WeightsRef,
)
from tinkex.engine.training.trainer import Trainer

MODELS = ["tinkex/tiny-qwen3-moe", "tinkex/tiny-qwen3.5", "tinkex/tiny-gpt-oss"]


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def sampler_of(model: str, **limits: int) -> Any:
    return make_sampler(tiny_decoder(model), tiny_folder(model), **limits)


def tokens_of(result: SampleResult) -> list[list[int]]:
    return [sequence.tokens.tolist() for sequence in result.sequences]


def commands(weights: list[str]) -> list[Sample]:
    return [
        sample(f"s{i}", prompt_of(i, 3 + 13 * i % 60), weights=weights[i % len(weights)], seed=i,
               temperature=(1.0, 0.0)[i % 2], max_tokens=10, num_samples=1 + i % 3)
        for i in range(24)
    ]  # fmt: skip


def test_a_request_gets_the_same_tokens_alone_and_in_company(model: str, tmp_path: Path) -> None:
    folders = {
        f"w{i}": write_random_adapter(tmp_path / str(i), i, 2 + i, model=model) for i in range(3)
    }

    def fresh() -> Any:
        sampler = sampler_of(model, pages=2000)
        for name, folder in folders.items():
            sampler.versions.add(name, str(folder))
        return sampler

    asked = commands(["", *folders])
    together = results_of(fresh(), *asked)
    for i in range(0, 24, 5):
        (alone,) = results_of(fresh(), asked[i])
        assert tokens_of(alone) == tokens_of(together[i])
        for one, other in zip(alone.sequences, together[i].sequences, strict=True):
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)


def test_the_trainer_computes_the_logprobs_that_were_sampled(model: str, tmp_path: Path) -> None:
    """Of adapters that a run saved and a sampler loaded: the importance ratio is one."""
    trainer = Trainer(tiny_decoder(model))
    trainer.create_run(CreateRun("op", "run", LoraSpec(4, seed=3)))
    folder = write_random_adapter(tmp_path / "a", 3, model=model)
    saved = tmp_path / "saved"
    saved.mkdir()
    save_run(trainer, "run", saved, training=False)
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        (saved / name).write_bytes((folder / name).read_bytes())
    trainer.load_run(LoadRun("op", "run", WeightsRef(str(saved)), optimizer=False))
    sampler = sampler_of(model, step_tokens=20)
    sampler.versions.add("w", str(folder))
    prompts = [prompt_of(seed, length) for seed, length in ((1, 1), (2, 31), (3, 70))]
    asked = [sample(f"s{i}", p, weights="w", max_tokens=24) for i, p in enumerate(prompts)]
    results = results_of(sampler, *asked)
    data = []
    for prompt, result in zip(prompts, results, strict=True):
        whole = np.concatenate([prompt, result.sequences[0].tokens])
        inputs = {
            "target_tokens": whole[1:].astype(np.int64),
            "weights": np.ones(len(whole) - 1, np.float32),
        }
        data.append(Datum(whole[:-1].astype(np.int32), inputs))
    (trained,) = train(trainer, call("run", *data, forward_only=True))
    for prompt, result, output in zip(prompts, results, trained.outputs, strict=True):
        own = output["logprobs"][len(prompt) - 1 :]
        np.testing.assert_allclose(own, result.sequences[0].logprobs, atol=1e-4)


def test_reusing_a_prefix_changes_nothing_and_is_counted(model: str) -> None:
    prompt = prompt_of(5, 90)
    asked = [sample(f"s{i}", prompt, seed=i, max_tokens=12) for i in range(3)]
    sampler = sampler_of(model)
    again = [results_of(sampler, command)[0] for command in asked]
    fresh = [results_of(sampler_of(model), command)[0] for command in asked]
    assert [tokens_of(result) for result in again] == [tokens_of(result) for result in fresh]
    assert again[0].cached_tokens == 0
    assert again[1].cached_tokens == again[2].cached_tokens == 80


@pytest.mark.parametrize("snapshots", [0, 4])
def test_preempted_requests_end_with_the_tokens_they_would_have_had(
    model: str, snapshots: int
) -> None:
    """A linear layer's state is made again, or taken from a snapshot: logprobs would tell one that
    is not the sequence's."""
    asked = [sample(f"s{i}", prompt_of(i, 20), seed=i, max_tokens=40) for i in range(6)]
    tight = sampler_of(model, pages=12, snapshots=snapshots)
    found = results_of(tight, *asked)
    assert tight.scheduler.preemptions > 0
    for one, other in zip(found, results_of(sampler_of(model, pages=500), *asked), strict=True):
        assert tokens_of(one) == tokens_of(other)
        for mine, theirs in zip(one.sequences, other.sequences, strict=True):
            assert mine.logprobs.tolist() == pytest.approx(theirs.logprobs.tolist(), abs=1e-4)


def test_the_next_turn_finds_what_the_last_answer_computed(model: str) -> None:
    prompt = prompt_of(6, 50)
    sampler = sampler_of(model)
    (first,) = results_of(sampler, sample("a", prompt, seed=1, max_tokens=40))
    longer = np.concatenate([prompt, first.sequences[0].tokens, prompt_of(7, 20)])
    (again,) = results_of(sampler, sample("b", longer, seed=2, max_tokens=12))
    (fresh,) = results_of(sampler_of(model), sample("c", longer, seed=2, max_tokens=12))
    assert again.cached_tokens == 80
    assert tokens_of(again) == tokens_of(fresh)


def test_snapshots_that_made_room_cost_time_and_nothing_else() -> None:
    model = "tinkex/tiny-qwen3.5"
    prompts = [prompt_of(seed, 60) for seed in range(4)]
    asked = [sample(f"s{i}", prompts[i % 4], seed=i, max_tokens=30) for i in range(12)]
    tight = sampler_of(model, snapshots=1)
    found = [tokens_of(results_of(tight, command)[0]) for command in asked]
    wanted = [tokens_of(results_of(sampler_of(model), command)[0]) for command in asked]
    assert found == wanted


def test_more_samples_than_places_of_several_lanes_all_end_as_they_would_alone(model: str) -> None:
    asked = [
        sample(f"s{i}", prompt_of(i, 20 + i), seed=i, max_tokens=20,
               num_samples=3, lane="abc"[i % 3])
        for i in range(6)
    ]  # fmt: skip
    few = sampler_of(model, rows=4, pages=60, step_tokens=24)
    found = [tokens_of(result) for result in results_of(few, *asked)]
    assert found == [tokens_of(results_of(sampler_of(model), one)[0]) for one in asked]
