"""The engine's own process spoken to directly: what is left of a figure without door and client."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tinkex.engine.messages import (
    CreateRun,
    Datum,
    Done,
    ForwardBackward,
    ForwardBackwardResult,
    LoadWeights,
    LoraSpec,
    OptimStep,
    Ping,
    Result,
    Sample,
    SampleResult,
    SamplingParams,
    SaveRun,
    Stats,
    WeightsRef,
)
from tinkex.engine.process.parent import RemoteWorker
from tinkex.engine.settings import WorkerConfig

ADAM = {"learning_rate": 1e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12,
        "weight_decay": 0.0, "grad_clip_norm": 0.0}  # fmt: skip


class BareEngine:
    """One run on one model."""

    def __init__(self, folder: Path, rank: int, dtype: str = "float32", base: str = "auto") -> None:
        self._weights = ""
        self._worker = RemoteWorker(WorkerConfig(str(folder), dtype=dtype, base=base))
        self._worker.ready()
        self._worker.send(CreateRun("create", "run", LoraSpec(rank, seed=0)))
        self._answers("create")

    def settle(self, patience_s: float = 90.0) -> None:
        """Wait until the engine has got ready in its idle time all that it would."""
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            self._worker.send(Ping("ping"))
            stats = self._answers("ping")["ping"]
            assert isinstance(stats, Stats)
            if stats.prepared:
                return
            time.sleep(0.1)

    def step(self, batch: Sequence[NDArray[np.int64]]) -> float:
        """Next-token prediction on these sequences and an update; the summed loss."""
        data = tuple(
            Datum(
                tokens[:-1].astype(np.int32),
                {"target_tokens": tokens[1:], "weights": np.ones(len(tokens) - 1, np.float32)},
            )
            for tokens in batch
        )
        self._worker.send(ForwardBackward("gradients", "run", data, "cross_entropy"))
        self._worker.send(OptimStep("step", "run", "adamw", ADAM))
        result = self._answers("gradients", "step")["gradients"]
        assert isinstance(result, ForwardBackwardResult)
        return result.metrics["loss:sum"]

    def sample(self, prompts: Sequence[NDArray[np.int64]], new: int, seed: int) -> int:
        """One sample for each prompt, all at once; how many tokens came."""
        names = [str(index) for index in range(len(prompts))]
        params = SamplingParams(max_tokens=new, seed=seed, stop=())
        for name, prompt in zip(names, prompts, strict=True):
            self._worker.send(Sample(name, self._weights, prompt.astype(np.int32), params))
        results = self._answers(*names).values()
        return sum(
            len(s.tokens) for r in results if isinstance(r, SampleResult) for s in r.sequences
        )

    def tuned(self, folder: Path) -> None:
        """Sample from the run as it is, saved to an empty folder, instead of the base model."""
        self._worker.send(SaveRun("save", "run", str(folder), training=False))
        self._answers("save")
        self._worker.send(LoadWeights("load", "tuned", WeightsRef(str(folder))))
        self._answers("load")
        self._weights = "tuned"

    def close(self) -> None:
        self._worker.close()

    def _answers(self, *ops: str) -> dict[str, Result]:
        found: dict[str, Result] = {}
        while len(found) < len(ops):
            event = self._worker.receive()
            assert isinstance(event, Done), event
            found[event.op] = event.result
        assert set(found) == set(ops)
        return found
