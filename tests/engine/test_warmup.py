"""Warming up uses every path once and leaves nothing behind."""

from __future__ import annotations

from support.sampling import make_sampler
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.process.start_stages import StartStages
from tinkex.engine.process.warmup import warm_up
from tinkex.engine.training.trainer import Trainer


def test_warming_up_leaves_no_run_and_no_request_behind(decoder: Decoder) -> None:
    trainer, sampler = Trainer(decoder), make_sampler(decoder)
    warm_up(trainer, sampler, StartStages())
    assert trainer.runs == 0
    assert not sampler.busy
    assert sampler.pool.used == 0


def test_of_a_start_it_is_said_how_long_each_stage_took() -> None:
    now = iter([5.0, 7.5, 7.6])
    stages = StartStages(lambda: next(now))
    stages.ended("weights")
    stages.ended("first steps")
    assert str(stages) == "weights 2.5 s, first steps 0.1 s"
