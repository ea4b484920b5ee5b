"""Warm-up on a GPU: one call of each kind before the engine says that it is ready.

Kernels compile, libraries set themselves up and memory is taken on first use; a user's first call
should pay for none of it. What depends on batch sizes is captured in idle time: see `prepare` of
trainer and sampler.
"""

from __future__ import annotations

import numpy as np

from tinkex.engine.messages import (
    CreateRun,
    Datum,
    DropRun,
    ForwardBackward,
    LoraSpec,
    OptimStep,
    Sample,
    SamplingParams,
)
from tinkex.engine.process.start_stages import StartStages
from tinkex.engine.sampling.sampler import Sampler
from tinkex.engine.training.trainer import Trainer

_NAME = "warm-up"
_ADAM = {
    "learning_rate": 0.0, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.0,
    "grad_clip_norm": 0.0,
}  # fmt: skip
_PASSES = ((1, 8), (4, 30), (2, 600))
"""Sequences and their tokens: small captured passes, and one of the plain path."""


def warm_up(trainer: Trainer, sampler: Sampler, stages: StartStages) -> None:
    """Train and sample a little, leaving nothing behind."""
    trainer.create_run(CreateRun(_NAME, _NAME, LoraSpec(32, seed=0)))
    context = trainer.decoder.config.max_context
    for count, length in _PASSES:
        data = (_datum(min(length, context - 1)),) * count
        for outcome in trainer.forward_backward(
            [ForwardBackward(_NAME, _NAME, data, "cross_entropy")]
        ):
            if isinstance(outcome, Exception):
                raise outcome
    trainer.optim_step(OptimStep(_NAME, _NAME, "adamw", _ADAM))
    trainer.drop_run(DropRun(_NAME, _NAME))
    stages.ended("first steps")
    prompt = np.zeros(min(40, sampler.context - 4), np.int32)
    sampler.submit(Sample(_NAME, "", prompt, SamplingParams(max_tokens=3, seed=0, stop=())))
    while sampler.busy:
        sampler.step()
    stages.ended("first sample")


def _datum(length: int) -> Datum:
    weights = np.ones(length, np.float32)
    return Datum(
        np.zeros(length, np.int32),
        {"target_tokens": np.zeros(length, np.int64), "weights": weights},
    )
