"""Eight runs on one tiny model: their calls in one packed batch against one after another.

    python benchmarks/engine_tenants.py

The alternative is the same calls as batches of their own. What is gained is the fixed cost of a
pass and the width of its products; the low-rank products are each tenant's own either way, and once
a tenant's own tokens fill the processor there is little left to gain. A small pass gets one thread,
a large one all (`tinkex.engine.cpu.threads`); the last row gives the alternative all of them too.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from report import Row, write

from tinkex.engine.builtin.tiny import ensure_tiny
from tinkex.engine.messages import CreateRun, Datum, ForwardBackward, LoraSpec
from tinkex.engine.model.loading import load_decoder
from tinkex.engine.training import batch
from tinkex.engine.training.trainer import Trainer

TENANTS = 8
ROUNDS = 21
CACHE = Path.home() / ".cache" / "tinkex" / "models"


def make_call(rng: np.random.Generator, run: str, lengths: Sequence[int]) -> ForwardBackward:
    data = tuple(
        Datum(
            rng.integers(0, 256, n).astype(np.int32),
            {"target_tokens": rng.integers(0, 256, n), "weights": np.ones(n, dtype=np.float32)},
        )
        for n in lengths
    )
    return ForwardBackward("", run, data, "cross_entropy")


def seconds(trainer: Trainer, batches: Sequence[Sequence[ForwardBackward]]) -> float:
    start = time.perf_counter()
    for each in batches:
        for outcome in trainer.forward_backward(each):
            if isinstance(outcome, Exception):
                raise outcome
    return time.perf_counter() - start


def measure(trainer: Trainer, calls: Sequence[ForwardBackward]) -> tuple[float, float]:
    together, apart = [], []
    for _ in range(ROUNDS):
        together.append(seconds(trainer, [calls]))
        apart.append(seconds(trainer, [[call] for call in calls]))
    return statistics.median(together[1:]), statistics.median(apart[1:])


def main() -> None:
    rng = np.random.default_rng(0)
    decoder = load_decoder(ensure_tiny("tinkex/tiny-llama", CACHE))
    trainer = Trainer(decoder)
    for tenant in range(TENANTS):
        trainer.create_run(CreateRun("", str(tenant), LoraSpec(8 << tenant % 3, seed=tenant)))
    rows = []
    for name, lengths in (
        ("1 datum of 16 tokens", (16,)),
        ("1 datum of 32 tokens", (32,)),
        ("4 datums of 8…64 tokens", (8, 24, 40, 64)),
    ):
        calls = [make_call(rng, str(tenant), lengths) for tenant in range(TENANTS)]
        own, other = measure(trainer, calls)
        what = f"{TENANTS} tenants, {name} each"
        rows.append(Row(what, own * 1e3, "ms", against=other * 1e3, target="≥1.5×"))
    with mock.patch.object(batch, "threads_for", return_value=torch.get_num_threads()):
        own, other = measure(trainer, calls)
    rows.append(Row(f"{what}, all threads for all", own * 1e3, "ms", against=other * 1e3))
    note = (
        "Ranks 8, 16 and 32 mixed. The alternative is the same calls, one batch each. A small pass "
        "gets one thread, a large one all; in the last row every pass gets all."
    )
    write("engine_tenants", "Eight tenants in one batch, tiny model", rows, note)


if __name__ == "__main__":
    main()
