"""A packed training step on SmolLM2-135M against transformers + PEFT with padding.

    python benchmarks/engine_training.py

Both sides: float32, rank 32 on every linear layer and the unembedding, next-token loss, AdamW, the
same sequences. Steps alternate, so that whatever else the machine does hits both; medians.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from report import Row, write

from tinkex.engine.builtin.gguf import ensure_smollm2
from tinkex.engine.limits import Limits
from tinkex.engine.messages import CreateRun, Datum, ForwardBackward, LoraSpec, OptimStep
from tinkex.engine.model.loading import load_decoder
from tinkex.engine.training.trainer import Trainer

RANK = 32
ROUNDS = 7
ADAM = {"learning_rate": 1e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12,
        "weight_decay": 0.0, "grad_clip_norm": 0.0}  # fmt: skip
CACHE = Path.home() / ".cache" / "tinkex" / "models"

Sequences = Sequence[NDArray[np.int64]]


def make_datum(tokens: NDArray[np.int64]) -> Datum:
    """Next-token prediction; the last token has no target, so its weight is zero."""
    weights = np.ones(len(tokens), dtype=np.float32)
    weights[-1] = 0.0
    targets = np.append(tokens[1:], 0)
    return Datum(tokens.astype(np.int32), {"target_tokens": targets, "weights": weights})


class EngineTrainer:
    def __init__(self, folder: Path, limits: Limits | None = None) -> None:
        self.trainer = Trainer(load_decoder(folder), limits)
        self.trainer.create_run(CreateRun("", "run", LoraSpec(RANK, seed=0)))

    def step(self, sequences: Sequences) -> float:
        data = tuple(make_datum(tokens) for tokens in sequences)
        command = ForwardBackward("", "run", data, "cross_entropy")
        (outcome,) = self.trainer.forward_backward([command])
        if isinstance(outcome, Exception):
            raise outcome
        self.trainer.optim_step(OptimStep("", "run", "adamw", ADAM))
        return outcome.metrics["loss:sum"]


def medians(
    ours: Callable[[Sequences], float], theirs: Callable[[Sequences], float], data: Sequences,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, float]:  # fmt: skip
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS + 1):
        for step, kept in ((ours, times[0]), (theirs, times[1])):
            start = clock()
            step(data)
            kept.append(clock() - start)
    return statistics.median(times[0][1:]), statistics.median(times[1][1:])


def main() -> None:
    from peft_baseline import PeftTrainer  # others take our side from here, without those libraries

    folder = ensure_smollm2(CACHE)
    ours, theirs = EngineTrainer(folder), PeftTrainer(folder, RANK)
    rng = np.random.default_rng(0)
    equal = [rng.integers(0, 49152, 128) for _ in range(8)]
    mixed = [rng.integers(0, 49152, n) for n in (128, 112, 96, 80, 64, 48, 32, 16)]
    first = abs(ours.step(mixed) / theirs.step(mixed) - 1)
    rows = []
    for name, data, target in (
        ("8×128, equal", equal, "≥1×"),
        ("8 of 16…128, mixed", mixed, "≥1.3×"),
    ):
        own, other = medians(ours.step, theirs.step, data)
        rows.append(
            Row(f"step, {name} lengths", own * 1e3, "ms", against=other * 1e3, target=target)
        )
    note = f"The first losses agree within {first:.1e} (B starts at zero on both sides)."
    write("engine_training", "Packed training step, SmolLM2-135M", rows, note)


if __name__ == "__main__":
    main()
