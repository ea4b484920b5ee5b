"""Promises of long passes: cut into stretches of layers they give the bits they give whole, and
others get their turn between two stretches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from support.sampling import tiny_decoder
from support.training import call, gradient, random_datum, train
from tinkex.engine.limits import Limits
from tinkex.engine.messages import (
    CreateRun,
    Done,
    Event,
    ForwardBackward,
    ForwardBackwardResult,
    LoraSpec,
)
from tinkex.engine.model.sizes import sizes_of
from tinkex.engine.process.batches import Batches
from tinkex.engine.process.run_queues import RunQueues
from tinkex.engine.training import eager_pass
from tinkex.engine.training.eager_pass import Stretches
from tinkex.engine.training.trainer import Trainer

RNG = np.random.default_rng(5)
LONG = [random_datum(RNG, length) for length in (70, 33, 1)]
SHORT = random_datum(RNG, 17)
MODELS = ("tiny-llama", "tiny-qwen3", "tiny-qwen3-moe", "tiny-qwen3.5", "tiny-gpt-oss")


def cut_everything(monkeypatch: pytest.MonkeyPatch, work: float = 1.0) -> None:
    monkeypatch.setattr(eager_pass, "_WORK", {"cpu": work})


def trainer_of(model: str, **limits: Any) -> Trainer:
    made = Trainer(tiny_decoder(f"tinkex/{model}"), Limits(**limits))
    for seed, run in enumerate(("long", "other", "short")):
        made.create_run(CreateRun("op", run, LoraSpec(4, seed=seed)))
    return made


@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_a_pass_in_stretches_gives_the_bits_of_one_that_is_made_whole(
    model: str, recomputed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"activation_bytes": 1} if recomputed else {}
    found = []
    for cut in (False, True):
        if cut:
            cut_everything(monkeypatch)
        trainer = trainer_of(model, **limits)
        batch = trainer.begin([call("long", *LONG), call("other", *LONG[:1], forward_only=True)])
        layers = len(trainer.decoder.config.layers)
        assert batch.remaining == ((2 * layers + 1) + (layers + 1) if cut else 2)
        for left in range(batch.remaining, 0, -1):
            assert batch.remaining == left
            next(batch)
        next(batch, None)
        results = [made for made in batch.outcomes if isinstance(made, ForwardBackwardResult)]
        assert len(results) == 2
        logprobs = [out["logprobs"] for result in results for out in result.outputs]
        found.append((gradient(trainer, "long").clone(), np.concatenate(logprobs)))
    (whole, numbers), (made, same) = found
    assert whole.any()
    assert torch.equal(made, whole)
    assert np.array_equal(same, numbers)


class Turns:
    """Batches of a trainer, run unit by unit."""

    def __init__(self, trainer: Trainer) -> None:
        self.events: list[Event] = []
        self.queues = RunQueues()
        self.batches = Batches(trainer, self.queues, self.events.append, lambda: None)

    def ask(self, *commands: ForwardBackward) -> None:
        for command in commands:
            self.queues.add(command)

    def units(self) -> Iterator[list[str]]:
        """What has been answered so far, after each unit."""
        while True:
            self.batches.begin(self.batches.runs)
            if not self.batches:
                return
            self.batches.run_unit()
            self.queues.new_round()
            yield [event.op for event in self.events if isinstance(event, Done)]


def named(run: str, *data: Any) -> ForwardBackward:
    return ForwardBackward(run, run, data, "cross_entropy")


def test_a_short_call_waits_for_the_stretch_under_way_and_then_they_take_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut_everything(monkeypatch, sizes_of(tiny_decoder().config).active * 20.0)
    trainer = trainer_of("tiny-llama")
    turns = Turns(trainer)
    turns.ask(named("long", *LONG))
    units = turns.units()
    assert next(units) == []
    turns.ask(named("short", SHORT))
    assert next(units) == ["short"]
    turns.ask(named("short", SHORT))
    assert next(units) == ["short"]  # whose turn it was
    assert next(units) == ["short", "short"]
    assert list(units)[-1] == ["short", "short", "long"]


def test_of_two_long_passes_one_is_made_to_its_end_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is planned for one."""
    cut_everything(monkeypatch)
    trainer = trainer_of("tiny-llama", activation_bytes=1)
    turns = Turns(trainer)
    turns.ask(named("long", *LONG))
    units = turns.units()
    next(units)
    turns.ask(named("other", *LONG))
    open_at_once = []
    for _ in units:
        under_way = [underway.batch for underway in turns.batches._underway]
        open_at_once.append(sum(batch.is_open for batch in under_way))
    assert max(open_at_once) == 1
    assert [event.op for event in turns.events if isinstance(event, Done)] == ["long", "other"]


def test_a_failure_in_a_stretch_fails_its_batch_and_changes_no_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut_everything(monkeypatch)
    trainer = trainer_of("tiny-llama")
    batch = trainer.begin([call("long", *LONG)])
    for _ in range(4):
        next(batch)
    assert batch.is_open

    def broken(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(torch.autograd, "backward", broken)
    for _ in batch:
        pass
    assert not batch.is_open
    assert "out of memory" in str(batch.outcomes[0])
    assert trainer._find("long").gradient is None
    monkeypatch.undo()
    (result,) = train(trainer, call("long", *LONG))
    assert result.outputs


def test_short_passes_of_small_models_are_never_cut() -> None:
    config = tiny_decoder().config
    assert Stretches(config, torch.device("cpu")).of([31] * 4) == 1
    assert Stretches(config, torch.device("cuda")).of([4096]) == 1
