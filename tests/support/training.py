"""Small pieces that engine tests share: devices, random datums, optimizer parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tinkex.engine.messages import (
    Datum,
    ForwardBackward,
    ForwardBackwardResult,
    OptimStep,
    SaveResult,
)
from tinkex.engine.training.run import write_snapshot
from tinkex.engine.training.trainer import Trainer

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

ADAM = {
    "learning_rate": 1e-2,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-12,
    "weight_decay": 0.0,
    "grad_clip_norm": 0.0,
}


def random_datum(rng: np.random.Generator, length: int, vocab: int = 128) -> Datum:
    """Random tokens with next-token-like targets and weights of both signs, some zero."""
    weights = rng.normal(size=length).astype(np.float32)
    weights[rng.random(length) < 0.3] = 0.0
    return Datum(
        rng.integers(0, vocab, length).astype(np.int32),
        {"target_tokens": rng.integers(0, vocab, length), "weights": weights},
    )


def call(run: str, *data: Datum, loss: str = "cross_entropy", **extra: Any) -> ForwardBackward:
    return ForwardBackward("op", run, data, loss, **extra)


def train(trainer: Trainer, *calls: ForwardBackward) -> list[ForwardBackwardResult]:
    """Results of one packed batch; raises what any call failed with."""
    found = []
    for outcome in trainer.forward_backward(calls):
        if isinstance(outcome, Exception):
            raise outcome
        found.append(outcome)
    return found


def adam_step(run: str, **changed: float) -> OptimStep:
    return OptimStep("op", run, "adamw", ADAM | changed)


def gradient(trainer: Trainer, run: str) -> torch.Tensor:
    """What a run has gathered since its last step."""
    found = trainer._find(run).gradient
    assert found is not None
    return found.cpu()


def save_run(trainer: Trainer, name: str, folder: Path, *, training: bool) -> SaveResult:
    """Written at once; an engine's worker writes in a thread."""
    return write_snapshot(trainer.snapshot(name, training), folder)
