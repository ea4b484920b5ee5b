"""A training step through the whole server against the same step on the bare engine.

    python benchmarks/server_step.py

SmolLM2-135M, 8 sequences of 128 tokens, rank 32 everywhere, AdamW, float32. Through the server: our
client over HTTP, the log on disk, the scheduler, the engine's process, and back; both results are
waited for. Bare: the same commands given straight to an engine process of its own. Steps
alternate, so that whatever else the machine does hits both; medians.
"""

from __future__ import annotations

import os
import statistics
import time

import numpy as np
from bare_engine import ADAM, BareEngine
from numpy.typing import NDArray
from report import Row, write
from served_process import serving

import tinkex
from tinkex.server.engines.model_sources import DEFAULT_MODEL, default_cache, resolve

RANK, SEQUENCES, LENGTH = 32, 8, 128
ROUNDS = 7

Batch = list[NDArray[np.int64]]


class Served:
    def __init__(self, service: tinkex.ServiceClient) -> None:
        self._client = service.create_lora_training_client(DEFAULT_MODEL, rank=RANK, seed=0)

    def step(self, batch: Batch) -> float:
        data = [
            tinkex.Datum(
                model_input=tinkex.ModelInput.from_ints(tokens[:-1].tolist()),
                loss_fn_inputs={"target_tokens": tokens[1:], "weights": ones()},
            )
            for tokens in batch
        ]
        gradients = self._client.forward_backward(data, "cross_entropy")
        self._client.optim_step(tinkex.AdamParams(**ADAM)).result()
        return float(gradients.result().metrics["loss:sum"])


def ones() -> NDArray[np.float32]:
    return np.ones(LENGTH, dtype=np.float32)


def main() -> None:
    folder = resolve(DEFAULT_MODEL, default_cache(os.environ), os.environ).folder
    rng = np.random.default_rng(0)
    batch = [rng.integers(0, 49152, LENGTH + 1) for _ in range(SEQUENCES)]
    bare = BareEngine(folder, RANK)
    with (
        serving("--dtype", "float32") as server,
        tinkex.ServiceClient(base_url=server.url, api_key="tml-bench") as service,
    ):
        served = Served(service)
        times: tuple[list[float], list[float]] = ([], [])
        losses: tuple[list[float], list[float]] = ([], [])
        for _ in range(ROUNDS + 1):
            for side, subject in enumerate((served, bare)):
                begun = time.perf_counter()
                losses[side].append(subject.step(batch))
                times[side].append(time.perf_counter() - begun)
    bare.close()
    ours, alone = (statistics.median(kept[1:]) * 1000 for kept in times)
    apart = max(abs(a / b - 1) for a, b in zip(*losses, strict=True))
    shape = f"{SEQUENCES}×{LENGTH}"
    write(
        "server_step",
        "A training step through the server",
        [
            Row(f"SmolLM2-135M, {shape}, a step through the server", ours, "ms", against=alone),
            Row("over the bare engine", (ours / alone - 1) * 100, "%", target="≤10 %"),
        ],
        note=f"The alternative is the bare engine. The losses differ by at most {apart:.1e}.",
    )


if __name__ == "__main__":
    main()
