"""What training promises holds for models of every kind of block, not for dense ones alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch

from support.sampling import tiny_decoder
from support.training import adam_step, call, gradient, random_datum, save_run, train
from tinkex.engine.errors import UserError
from tinkex.engine.limits import Limits
from tinkex.engine.messages import (
    CreateRun,
    Datum,
    ForwardBackwardResult,
    LoadRun,
    LoraSpec,
    WeightsRef,
)
from tinkex.engine.training.trainer import Trainer

MODELS = ["tinkex/tiny-qwen3-moe", "tinkex/tiny-qwen3.5", "tinkex/tiny-gpt-oss"]


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def trainer_of(model: str, *runs: str, limits: Limits | None = None) -> Trainer:
    made = Trainer(tiny_decoder(model), limits)
    for run in runs:
        made.create_run(CreateRun("op", run, LoraSpec(4 + 4 * len(run), seed=len(run))))
    return made


def data_of(seed: int, *lengths: int) -> Sequence[Datum]:
    rng = np.random.default_rng(seed)
    return [random_datum(rng, length) for length in lengths]


def test_company_changes_no_bit_of_a_call(model: str) -> None:
    own = data_of(1, 5, 33, 64, 70)
    alone = trainer_of(model, "a")
    (single,) = train(alone, call("a", *own))
    shared = trainer_of(model, "bb", "a", "ccc")
    others = [call("bb", *data_of(2, 7, 90)), call("ccc", *data_of(3, 65, 3))]
    among = train(shared, others[0], call("a", *own), others[1])[1]
    for one, other in zip(single.outputs, among.outputs, strict=True):
        assert np.array_equal(one["logprobs"], other["logprobs"])
    assert torch.equal(gradient(alone, "a"), gradient(shared, "a"))


@pytest.mark.parametrize("seed", range(6))
def test_nor_does_company_of_any_size_before_or_after_it(model: str, seed: int) -> None:
    """Rows at the end of a pack are where elementwise work leaves whole vectors."""
    rng = np.random.default_rng(seed)
    own, other = (data_of(seed + 9, *rng.integers(3, 60, 3).tolist()) for _ in range(2))
    alone = trainer_of(model, "a")
    (single,) = train(alone, call("a", *own))
    for last in (False, True):
        shared, calls = trainer_of(model, "a", "bb"), [call("a", *own), call("bb", *other)]
        among = train(shared, *(reversed(calls) if last else calls))[1 if last else 0]
        for one, found in zip(single.outputs, among.outputs, strict=True):
            assert np.array_equal(one["logprobs"], found["logprobs"])
        assert torch.equal(gradient(alone, "a"), gradient(shared, "a"))


@pytest.mark.parametrize("kind", ["tinkex/tiny-llama", *MODELS])
@pytest.mark.parametrize("place", range(3))
def test_nor_does_company_whose_weights_diverged(kind: str, place: int) -> None:
    """On a CPU, a hybrid's convolution took NaN of the sequence before, times zero, for zero."""
    own, alone = data_of(1, 5, 33, 64, 70), trainer_of(kind, "a")
    (single,) = train(alone, call("a", *own))
    shared, calls = trainer_of(kind, "a", "bb", "ccc"), []
    for run, size, data in (("bb", 1e30, data_of(2, 3, 17)), ("ccc", 1e20, data_of(3, 2, 50))):
        shared._find(run).adapter.master.mul_(size).add_(size)
        calls.append(call(run, *data))
    calls.insert(place, call("a", *own))
    found = list(shared.forward_backward(calls))
    among = found.pop(place)
    assert isinstance(among, ForwardBackwardResult), among
    assert all(isinstance(each, UserError) for each in found)
    for one, other in zip(single.outputs, among.outputs, strict=True):
        assert np.array_equal(one["logprobs"], other["logprobs"])
    assert torch.equal(gradient(alone, "a"), gradient(shared, "a"))


PARTS = ("train_attn", "train_mlp", "train_unembed")


@pytest.mark.parametrize("kind", ["tinkex/tiny-llama", *MODELS])
@pytest.mark.parametrize("off", [*combinations(PARTS, 1), *combinations(PARTS, 2)], ids="+".join)
def test_nor_does_company_that_trains_other_parts(kind: str, off: tuple[str, ...]) -> None:
    """What a run's layers are asked gradients for depends on its neighbours."""
    own, few = data_of(1, 5, 33, 64, 70), LoraSpec(4, seed=3, **dict.fromkeys(off, False))
    every = LoraSpec(8, seed=4)
    for spec, other in ((few, every), (every, few)):
        alone, shared = trainer_of(kind), trainer_of(kind)
        alone.create_run(CreateRun("op", "a", spec))
        shared.create_run(CreateRun("op", "a", spec))
        shared.create_run(CreateRun("op", "bb", other))
        (single,) = train(alone, call("a", *own))
        among = train(shared, call("bb", *data_of(2, 7, 90)), call("a", *own))[1]
        for one, found in zip(single.outputs, among.outputs, strict=True):
            assert np.array_equal(one["logprobs"], found["logprobs"])
        assert torch.equal(gradient(alone, "a"), gradient(shared, "a"))


def test_two_halves_sum_to_the_whole(model: str) -> None:
    data = data_of(4, 20, 65, 31, 100)
    whole, halves = trainer_of(model, "a"), trainer_of(model, "a")
    train(whole, call("a", *data))
    train(halves, call("a", *data[:2]))
    train(halves, call("a", *data[2:]))
    one, other = gradient(whole, "a"), gradient(halves, "a")
    assert (one - other).norm() <= 1e-5 * one.norm()


def test_recomputing_layers_gives_the_same_gradient(model: str) -> None:
    data = data_of(5, 40, 65)
    plain = trainer_of(model, "a")
    lean = trainer_of(model, "a", limits=Limits(activation_bytes=1))
    results = [train(each, call("a", *data))[0] for each in (plain, lean)]
    assert torch.allclose(gradient(plain, "a"), gradient(lean, "a"), atol=1e-6)
    assert results[0].metrics == pytest.approx(results[1].metrics)


def test_a_resumed_run_continues_bit_for_bit(model: str, tmp_path: Path) -> None:
    data = data_of(6, 30, 70)
    first = trainer_of(model, "a")
    for _ in range(2):
        train(first, call("a", *data))
        first.optim_step(adam_step("a"))
    train(first, call("a", *data))
    save_run(first, "a", tmp_path, training=True)
    second = Trainer(tiny_decoder(model))
    second.load_run(LoadRun("op", "a", WeightsRef(str(tmp_path)), optimizer=True, create=True))
    for each in (first, second):
        each.optim_step(adam_step("a"))
    masters = [each._find("a").adapter.master for each in (first, second)]
    assert torch.equal(*masters)


def test_a_run_learns(model: str) -> None:
    trainer, data = trainer_of(model, "a"), data_of(7, 24, 48)
    for datum in data:
        datum.inputs["weights"][:] = 1.0
    losses = []
    for _ in range(12):
        losses.append(train(trainer, call("a", *data))[0].metrics["loss:sum"])
        trainer.optim_step(adam_step("a"))
    assert losses[-1] < 0.5 * losses[0]


def test_a_mixture_tells_how_its_experts_are_used() -> None:
    trainer = trainer_of("tinkex/tiny-qwen3-moe", "a", "bb")
    (result, other) = train(trainer, call("a", *data_of(8, 1)), call("bb", *data_of(9, 900)))
    assert result.metrics["e_frac_with_tokens:mean"] == 2 / 8, "one token goes to two of eight"
    assert result.metrics["e_frac_oversubscribed:mean"] == 2 / 8
    assert result.metrics["e_max_violation:mean"] == result.metrics["e_max_violation:max"] == 3.0
    assert result.metrics["e_min_violation:mean"] == -1.0
    assert other.metrics["e_frac_with_tokens:mean"] == 1.0
    dense = trainer_of("tinkex/tiny-qwen3", "a")
    assert not any(
        name.startswith("e_") for name in train(dense, call("a", *data_of(8, 5)))[0].metrics
    )
