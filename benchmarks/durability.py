"""What it costs that nothing accepted is ever lost, as a share of a training step.

    python benchmarks/durability.py

The server's whole path with an engine that answers at once, rows, payloads and results synced to
disk, is an upper bound; with syncing switched off it is everything else. The step it is a share of
is the engine's own, without a server: SmolLM2-135M, 8 sequences of 128 tokens.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
from report import Row, write

from support.served import Api, served
from tinkex.engine.messages import CreateRun, Datum, ForwardBackward, LoraSpec, OptimStep
from tinkex.engine.model.loading import load_decoder
from tinkex.engine.training.trainer import Trainer
from tinkex.server.engines.model_sources import default_cache, resolve
from tinkex.server.settings import Scheduling
from tinkex.types.datum import Datum as WireDatum
from tinkex.types.model_input import ModelInput
from tinkex.wire.protobuf import encode_forward_backward

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
STEPS = 60
ADAM = {"learning_rate": 1e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0.0,
        "grad_clip_norm": 0.0}  # fmt: skip


def body(model: str, seq: int) -> bytes:
    tokens = np.arange(128)
    inputs = {"target_tokens": tokens.astype(np.int64), "weights": np.ones(128, np.float32)}
    one = WireDatum(model_input=ModelInput.from_ints(tokens.tolist()), loss_fn_inputs=inputs)
    return encode_forward_backward(model, seq, [one] * 8, "cross_entropy", None, False)


async def one_step(api: Api, model: str, number: int) -> float:
    content = body(model, 2 * number + 1)
    begun = time.perf_counter()
    forward = await api.forward(model, 2 * number + 1, content=content)
    update = await api.step(model, 2 * number + 2)
    await api.result(forward["request_id"])
    await api.result(update["request_id"])
    return time.perf_counter() - begun


async def path() -> float:
    """Median seconds of a step's way through the server, snapshots included."""
    with tempfile.TemporaryDirectory() as home:
        async with served(Path(home), scheduling=Scheduling(snapshot_steps=50)) as api:
            model = await api.model(await api.session())
            times = [await one_step(api, model, number) for number in range(STEPS)]
    return statistics.median(times[5:])


def unsynced() -> float:
    from tinkex.server.storage import database

    connect = database.connect

    def careless(where: Path) -> object:
        connection = connect(where)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    with (
        mock.patch.object(database, "connect", careless),
        mock.patch("os.fsync"),
        mock.patch("os.fdatasync"),
    ):
        return asyncio.run(path())


def engine_step() -> float:
    folder = resolve(MODEL, default_cache(os.environ), os.environ).folder
    trainer = Trainer(load_decoder(folder))
    trainer.create_run(CreateRun("", "r", LoraSpec(32, seed=1)))
    tokens = np.arange(128, dtype=np.int32)
    inputs = {"target_tokens": tokens.astype(np.int64), "weights": np.ones(128, np.float32)}
    call = ForwardBackward("", "r", (Datum(tokens, inputs),) * 8, "cross_entropy")
    times = []
    for _ in range(6):
        begun = time.perf_counter()
        trainer.forward_backward([call])
        trainer.optim_step(OptimStep("", "r", "adamw", ADAM))
        times.append(time.perf_counter() - begun)
    return statistics.median(times[1:])


def main() -> None:
    synced, careless, step = asyncio.run(path()), unsynced(), engine_step()
    rows = [
        Row("the engine's step, 8×128 tokens", step * 1e3, "ms"),
        Row("a step's way through the server, all synced", synced * 1e3, "ms"),
        Row("the same, nothing synced", careless * 1e3, "ms"),
        Row("durability, share of the step", 100 * (synced - careless) / step, "%", target="≤5 %"),
        Row("the whole way, share of the step", 100 * synced / step, "%"),
    ]
    write("durability", "The cost of durability", rows)


if __name__ == "__main__":
    main()
