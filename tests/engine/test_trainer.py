"""What a training call promises: sums as given, isolation, and refusal before any change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.training import DEVICE, adam_step, call, gradient, random_datum, train
from tinkex.engine.errors import EngineError, UnknownRun, UserError
from tinkex.engine.limits import Limits
from tinkex.engine.messages import (
    CreateRun,
    Csr,
    Datum,
    DropRun,
    ForwardBackward,
    ForwardBackwardResult,
    LoraSpec,
    OptimStep,
)
from tinkex.engine.model.decoder import Decoder, Lora
from tinkex.engine.training import passes
from tinkex.engine.training.trainer import Trainer

ROUNDING = 1e-5 if DEVICE == "cpu" else 0.05


def relative(one: torch.Tensor, other: torch.Tensor) -> float:
    """Weights that happen to be all zero give two gradients of zero, which are equal."""
    return 0.0 if torch.equal(one, other) else float((one - other).norm() / other.norm())


def gathered(trainer: Trainer, *calls: ForwardBackward, run: str = "run") -> torch.Tensor:
    """The gradient of these calls alone."""
    trainer._find(run).gradient = None
    train(trainer, *calls)
    return gradient(trainer, run).clone()


def test_the_same_datum_twice_doubles_and_weights_times_ten_give_ten(trainer: Trainer) -> None:
    datum = random_datum(np.random.default_rng(0), 20)
    tenfold = {**datum.inputs, "weights": np.asarray(datum.inputs["weights"]) * 10}
    once = gathered(trainer, call("run", datum))
    twice = gathered(trainer, call("run", datum, datum))
    tens = gathered(trainer, call("run", replace(datum, inputs=tenfold)))
    assert relative(twice, 2 * once) < ROUNDING
    assert relative(tens, 10 * once) < ROUNDING


def test_alternatives_per_token_are_dense_or_sparse_alike(trainer: Trainer) -> None:
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 128, 12).astype(np.int32)
    targets, weights = rng.integers(1, 128, (12, 3)), rng.normal(size=(12, 3)).astype(np.float32)
    weights[rng.random((12, 3)) < 0.5] = 0.0
    targets[weights == 0] = 0
    dense = Datum(tokens, {"target_tokens": targets, "weights": weights})
    rows, columns = np.nonzero(weights)
    crow = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=12))]).astype(np.int64)
    sparse = Datum(tokens, {
        "target_tokens": Csr(targets[rows, columns], crow, columns.astype(np.int64), (12, 3)),
        "weights": Csr(weights[rows, columns], crow, columns.astype(np.int64), (12, 3)),
    })  # fmt: skip
    columns_apart = [
        Datum(tokens, {"target_tokens": targets[:, k].copy(), "weights": weights[:, k].copy()})
        for k in range(3)
    ]
    results = train(trainer, call("run", dense), call("run", sparse), call("run", *columns_apart))
    assert results[0].outputs[0]["logprobs"].shape == (12, 3)
    np.testing.assert_array_equal(
        results[0].outputs[0]["logprobs"], results[1].outputs[0]["logprobs"]
    )
    assert results[0].metrics["loss:sum"] == pytest.approx(results[2].metrics["loss:sum"], rel=1e-5)
    of_dense = gathered(trainer, call("run", dense))
    assert relative(gathered(trainer, call("run", sparse)), of_dense) < ROUNDING
    assert relative(gathered(trainer, call("run", *columns_apart)), of_dense) < ROUNDING


@pytest.mark.parametrize("room", [0, 59], ids=["for inputs alone", "for attention too"])
def test_blocks_of_logits_and_recomputed_layers_change_nothing(
    trainer: Trainer, decoder: Decoder, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty tokens where the activations of `room` fit."""
    monkeypatch.setattr(passes, "LONG", 1)
    kept = room * decoder.config.kept * decoder.dtype.itemsize
    small = Trainer(decoder, Limits(logit_elements=128 * 5, activation_bytes=kept))
    small.create_run(CreateRun("op", "run", LoraSpec(8, seed=1)))
    data = [random_datum(np.random.default_rng(2), n) for n in (3, 40, 17)]
    rows: list[int] = []
    unembed = decoder.unembed

    def watched(hidden: torch.Tensor, lora: Lora | None = None) -> torch.Tensor:
        rows.append(len(hidden))
        return unembed(hidden, lora)

    with monkeypatch.context() as patch:
        patch.setattr(decoder, "unembed", watched)
        gathered(small, call("run", *data))
    assert sum(rows) == 60
    assert max(rows) <= 5
    assert relative(gathered(small, call("run", *data)), gathered(trainer, call("run", *data))) < (
        ROUNDING
    )


@pytest.mark.parametrize("budget", [12, 64])
def test_runs_of_any_ranks_and_modules_get_in_company_what_they_get_alone(
    decoder: Decoder, budget: int
) -> None:
    """On a GPU they share launches."""
    specs = {
        "a": LoraSpec(8, seed=1),
        "b": LoraSpec(3, seed=2, train_mlp=False),
        "c": LoraSpec(16, seed=3, train_attn=False),
    }

    def trained(together: bool) -> list[Tensor]:
        made, rng = Trainer(decoder, Limits(micro_batch_tokens=budget)), np.random.default_rng(4)
        for name, spec in specs.items():
            made.create_run(CreateRun("op", name, spec))
        for _ in range(3):
            calls = [call(name, *(random_datum(rng, n) for n in (5, 8, 1))) for name in specs]
            for batch in [calls] if together else [[one] for one in calls]:
                train(made, *batch)
            gradients = [gradient(made, name).clone() for name in specs]
            for name in specs:
                made.optim_step(adam_step(name, learning_rate=0.05))
        return gradients

    for alone, company in zip(trained(False), trained(True), strict=True):
        assert relative(company, alone) < 100 * ROUNDING


def test_forward_only_reports_and_leaves_no_gradient(trainer: Trainer) -> None:
    datum = random_datum(np.random.default_rng(3), 11)
    dry, wet = train(trainer, call("run", datum, forward_only=True), call("run", datum))
    assert dry.metrics["loss:sum"] == pytest.approx(wet.metrics["loss:sum"], rel=1e-4)
    trainer._find("run").gradient = None
    train(trainer, call("run", datum, forward_only=True))
    assert trainer._find("run").gradient is None


@pytest.mark.parametrize("part", ["attn", "mlp", "unembed"])
def test_only_the_chosen_parts_train(decoder: Decoder, part: str) -> None:
    made = Trainer(decoder)
    off = {"train_attn": False, "train_mlp": False, "train_unembed": False}
    made.create_run(CreateRun("op", "run", LoraSpec(4, seed=2, **(off | {f"train_{part}": True}))))
    datum = random_datum(np.random.default_rng(3), 11)
    first = train(made, call("run", datum))[0].metrics["loss:sum"]
    made.optim_step(adam_step("run"))
    assert train(made, call("run", datum))[0].metrics["loss:sum"] < first
    wanted = {"attn": {"q_proj", "k_proj", "v_proj", "o_proj"},
              "mlp": {"gate_proj", "up_proj", "down_proj"}, "unembed": {"lm_head"}}  # fmt: skip
    found = {module.rpartition(".")[2] for _, module in made.weights("run").factors}
    assert found == wanted[part]


def test_a_seed_fixes_the_adapter_and_runs_without_one_differ(decoder: Decoder) -> None:
    made = Trainer(decoder)
    for name, seed in (("a", 7), ("b", 7), ("c", None), ("d", None)):
        made.create_run(CreateRun("op", name, LoraSpec(4, seed=seed)))
    masters = {name: made._find(name).adapter.master for name in "abcd"}
    assert torch.equal(masters["a"], masters["b"])
    assert not torch.equal(masters["c"], masters["d"])
    assert made.nbytes > 4 * 3 * masters["a"].nbytes - 1
    made.drop_run(DropRun("op", "a"))
    assert made.runs == 3


@pytest.mark.skipif(DEVICE != "cpu", reason="a GPU's attention sums in any order")
def test_the_same_commands_give_the_same_bits(decoder: Decoder) -> None:
    def play() -> torch.Tensor:
        made = Trainer(decoder)
        rng = np.random.default_rng(9)
        for name in ("a", "b"):
            made.create_run(CreateRun("op", name, LoraSpec(4)))
        for _ in range(3):
            calls = [call(name, *(random_datum(rng, n) for n in (5, 30, 8))) for name in "ab"]
            train(made, *calls)
            for name in "ab":
                made.optim_step(adam_step(name))
        return torch.cat([made._find(name).adapter.master for name in "ab"])

    assert torch.equal(play(), play())


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_partition_gives_the_same_gradient(decoder: Decoder, data: st.DataObject) -> None:
    """Calls, micro-batches and co-tenants are packing, not mathematics."""
    lengths = data.draw(st.lists(st.integers(1, 24), min_size=1, max_size=6))
    rng = np.random.default_rng(sum(lengths))
    datums = [random_datum(rng, n) for n in lengths]
    budget = data.draw(st.integers(1, 100))
    others = data.draw(st.integers(0, 2))
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(datums) - 1)), max_size=3)))
    made = Trainer(decoder, Limits(micro_batch_tokens=budget))
    alone = Trainer(decoder)
    for trainer in (made, alone):
        trainer.create_run(CreateRun("op", "run", LoraSpec(8, seed=1)))
    calls = [call("run", *part) for part in split(datums, cuts)]
    for index in range(others):
        made.create_run(CreateRun("op", f"other{index}", LoraSpec(4 + index, seed=index)))
        place = data.draw(st.integers(0, len(calls)))
        calls.insert(place, call(f"other{index}", random_datum(rng, 9)))
    results = train(made, *calls)
    (expected,) = train(alone, call("run", *datums))
    assert relative(gradient(made, "run"), gradient(alone, "run")) < 10 * ROUNDING
    mine = [r for c, r in zip(calls, results, strict=True) if c.run == "run"]
    seen = [output["logprobs"] for result in mine for output in result.outputs]
    for own, theirs in zip(seen, expected.outputs, strict=True):
        np.testing.assert_allclose(own, theirs["logprobs"], atol=1e-4 if DEVICE == "cpu" else 0.2)


@pytest.mark.skipif(DEVICE != "cpu", reason="a GPU chooses kernels by the shape of the batch")
@pytest.mark.parametrize("limits", [Limits(), Limits(micro_batch_tokens=64, logit_elements=5120)])
def test_company_changes_no_bit(decoder: Decoder, limits: Limits) -> None:
    """A call's logprobs and gradient are the same bits alone and beside any other calls."""
    made, rng = Trainer(decoder, limits), np.random.default_rng(5)
    for index, name in enumerate("abc"):
        made.create_run(CreateRun("op", name, LoraSpec(4 << index, seed=index)))

    def outcome(*calls: ForwardBackward) -> tuple[list[bytes], torch.Tensor]:
        for name in "abc":
            made._find(name).gradient = None
        results = dict(zip([c.run for c in calls], train(made, *calls), strict=True))
        return [o["logprobs"].tobytes() for o in results["a"].outputs], gradient(made, "a").clone()

    for lengths in ((1,), (5, 3), (12,), (15,), (17,), (11, 11, 30), (70, 41)):
        mine = call("a", *(random_datum(rng, n) for n in lengths))
        logprobs, alone = outcome(mine)
        for others in ((2,), (9, 40), (64,)):
            company = [call(name, *(random_datum(rng, n) for n in others)) for name in "bc"]
            for calls in ((mine, *company), (*company, mine)):
                beside = outcome(*calls)
                assert beside[0] == logprobs, (lengths, others)
                assert torch.equal(beside[1], alone), (lengths, others)


def split(items: Sequence[Datum], cuts: Sequence[int]) -> list[Sequence[Datum]]:
    edges = [0, *(cut for cut in cuts if cut < len(items)), len(items)]
    return [items[a:b] for a, b in pairwise(edges) if a < b]


def test_micro_batches_can_be_taken_one_at_a_time(decoder: Decoder) -> None:
    made = Trainer(decoder, Limits(micro_batch_tokens=16))
    made.create_run(CreateRun("op", "run", LoraSpec(4)))
    rng = np.random.default_rng(0)
    batch = made.begin([call("run", *(random_datum(rng, n) for n in (20, 20, 30)))])
    assert next(batch) == 20
    assert made._find("run").gradient is None
    assert list(batch) == [20, 30]
    assert isinstance(batch.outcomes[0], ForwardBackwardResult)
    assert made._find("run").gradient is not None


GOOD = Datum(
    np.array([1, 2, 3], np.int32),
    {"target_tokens": np.array([2, 3, 4]), "weights": np.ones(3, np.float32)},
)


def with_inputs(**inputs: Any) -> Datum:
    return replace(GOOD, inputs={**GOOD.inputs, **inputs})


BAD: dict[str, tuple[Datum, str]] = {
    "id beyond": (
        replace(GOOD, tokens=np.array([1, 128, 3])),
        r"data\[0\].model_input.*id 128.*127",
    ),
    "id below": (replace(GOOD, tokens=np.array([1, -1, 3])), "id -1"),
    "target beyond": (with_inputs(target_tokens=np.array([1, 2, 999])), "target_tokens.*id 999"),
    "empty": (replace(GOOD, tokens=np.array([], np.int32)), "is empty"),
    "too long": (replace(GOOD, tokens=np.ones(1025, np.int32)), "1025 tokens.*at most 1024"),
    "floats": (with_inputs(target_tokens=np.ones(3, np.float32)), "whole numbers"),
    "shape": (with_inputs(target_tokens=np.array([1, 2])), r"shape \[2\].*must be \[3\]"),
    "weights": (with_inputs(weights=np.ones(2, np.float32)), r"weights has the shape \[2\]"),
    "nan": (with_inputs(weights=np.array([1, np.nan, 1], np.float32)), "NaN or infinity"),
    "unknown": (with_inputs(mask=np.ones(3, np.float32)), "'mask' is not an input"),
    "missing": (Datum(GOOD.tokens, {"target_tokens": np.array([2, 3, 4])}), "'weights' is missing"),
    "two-row tokens": (replace(GOOD, tokens=np.ones((1, 3), np.int32)), "row of token ids"),
    "csr": (
        with_inputs(weights=Csr(np.ones(1, np.float32), np.array([0, 1]), np.array([5]), (3, 1))),
        "row pointers",
    ),
}


@pytest.mark.parametrize("kind", list(BAD))
def test_a_bad_datum_fails_alone_and_changes_nothing(trainer: Trainer, kind: str) -> None:
    datum, message = BAD[kind]
    before = trainer._find("run").adapter.master.clone()
    trainer.create_run(CreateRun("op", "other", LoraSpec(4)))
    bad, good = trainer.forward_backward([call("run", datum), call("other", GOOD)])
    assert isinstance(bad, UserError)
    with pytest.raises(UserError, match=message):
        raise bad
    assert isinstance(good, ForwardBackwardResult)
    assert trainer._find("run").gradient is None
    assert torch.equal(trainer._find("run").adapter.master, before)


def test_overflow_fails_its_own_call_only(trainer: Trainer) -> None:
    wild = Datum(GOOD.tokens, {
        "target_tokens": np.array([2, 3, 4]),
        "logprobs": np.full(3, -1e5, np.float32),
        "advantages": np.ones(3, np.float32),
    })  # fmt: skip
    bad, good = trainer.forward_backward(
        [call("run", wild, loss="importance_sampling"), call("run", GOOD)]
    )
    assert isinstance(bad, UserError)
    assert "not finite" in str(bad)
    assert isinstance(good, ForwardBackwardResult)
    assert torch.isfinite(gradient(trainer, "run")).all()


def test_a_broken_pass_fails_every_call_and_changes_nothing(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> torch.Tensor:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(trainer.decoder, "unembed", broken)
    outcomes = trainer.forward_backward([call("run", GOOD), call("run", GOOD)])
    assert [type(outcome) for outcome in outcomes] == [EngineError, EngineError]
    assert trainer._find("run").gradient is None


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (CreateRun("op", "new", LoraSpec(0)), "rank 0 is outside.*1 to 128"),
        (CreateRun("op", "new", LoraSpec(129)), "rank 129 is outside"),
        (CreateRun("op", "run", LoraSpec(4)), "'run' exists already"),
        (CreateRun("op", "new", LoraSpec(4, None, False, False, False)), "nothing would train"),
        (CreateRun("op", "new", LoraSpec(4), "sgd"), "'sgd' is not known"),
    ],
)
def test_bad_runs_are_refused(trainer: Trainer, command: CreateRun, message: str) -> None:
    with pytest.raises(UserError, match=message):
        trainer.create_run(command)
    assert trainer.runs == 1


def test_unknown_runs_and_bad_optimizer_parameters_are_refused(trainer: Trainer) -> None:
    with pytest.raises(UnknownRun, match="'gone' is not known"):
        train(trainer, call("gone", GOOD))
    with pytest.raises(UserError, match="this run's optimizer is adamw"):
        trainer.optim_step(OptimStep("op", "run", "dimuon", {}))
    with pytest.raises(UserError, match="beta1 must be below 1"):
        trainer.optim_step(adam_step("run", beta1=1.0))
    with pytest.raises(UserError, match="momentum is no setting of adamw"):
        trainer.optim_step(adam_step("run", momentum=0.5))
    assert trainer._find("run").step == 0
