"""Promises of a batch: micro-batch by micro-batch, and nothing reaches a run before the end."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support.training import call, gradient, random_datum
from tinkex.engine.errors import EngineError
from tinkex.engine.limits import Limits
from tinkex.engine.messages import CreateRun, ForwardBackwardResult, LoraSpec
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.training.trainer import Trainer

RNG = np.random.default_rng(3)
SHORT, LONG = random_datum(RNG, 8), [random_datum(RNG, 20) for _ in range(3)]


@pytest.fixture
def trainer(decoder: Decoder) -> Trainer:
    made = Trainer(decoder, Limits(micro_batch_tokens=24))
    for run in ("a", "b"):
        made.create_run(CreateRun("op", run, LoraSpec(4, seed=1)))
    return made


def test_a_gradient_reaches_its_run_with_the_last_micro_batch(trainer: Trainer) -> None:
    batch = trainer.begin([call("a", *LONG)])
    assert batch.remaining == 3
    for left in (2, 1, 0):
        assert trainer._find("a").gradient is None
        assert next(batch) == 20
        assert batch.remaining == left
    with pytest.raises(StopIteration):
        next(batch)
    assert gradient(trainer, "a").any()
    (outcome,) = batch.outcomes
    assert isinstance(outcome, ForwardBackwardResult)
    assert [len(output["logprobs"]) for output in outcome.outputs] == [20, 20, 20]


def test_a_batch_that_breaks_changes_no_run_in_it(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = trainer.begin([call("a", *LONG), call("b", SHORT)])
    next(batch)

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no more")

    monkeypatch.setattr(type(batch), "_run", broken)
    for _ in batch:
        pass
    assert all(isinstance(outcome, EngineError) for outcome in batch.outcomes)
    assert [trainer._find(run).gradient for run in ("a", "b")] == [None, None]


def test_a_call_that_cannot_be_made_leaves_the_others_alone(trainer: Trainer) -> None:
    outcomes = trainer.forward_backward([call("nobody", SHORT), call("b", SHORT)])
    assert isinstance(outcomes[0], EngineError)
    assert isinstance(outcomes[1], ForwardBackwardResult)
    alone = gradient(trainer, "b").clone()
    trainer._find("b").gradient = None
    trainer.forward_backward([call("b", SHORT)])
    assert torch.equal(gradient(trainer, "b"), alone)
