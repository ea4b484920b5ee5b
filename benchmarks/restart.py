"""A server killed with fifty live runs: how long until every one of them trains again.

    python benchmarks/restart.py

Compared with the start of the same server on an empty home, which is loading the model.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from report import Row, write

import tinkex
from support.guarantee_data import batch
from support.server_process import MODEL, ServerProcess
from tinkex import types
from tinkex.server.engines.model_sources import default_cache, resolve

RUNS = 50
STEPS = 7


def started(server: ServerProcess) -> float:
    begun = time.monotonic()
    server.start()
    server.wait_ready()
    with tinkex.ServiceClient(base_url=server.url, api_key="tml-bench") as service:
        service.create_lora_training_client(MODEL, rank=8)
    return time.monotonic() - begun


def step(clients: list[tinkex.TrainingClient]) -> None:
    futures = []
    for client in clients:
        futures.append(client.forward_backward(batch(1, 2), "cross_entropy"))
        futures.append(client.optim_step(types.AdamParams(learning_rate=1e-3)))
    for future in futures:
        future.result()


def main() -> None:
    model = resolve(MODEL, default_cache(os.environ), os.environ).folder
    with tempfile.TemporaryDirectory() as folder:
        empty = ServerProcess(Path(folder) / "empty", model)
        bare = started(empty)
        empty.kill()
        server = ServerProcess(Path(folder) / "full", model)
        server.start()
        server.wait_ready()
        with tinkex.ServiceClient(base_url=server.url, api_key="tml-bench") as service:
            clients = [service.create_lora_training_client(MODEL, rank=8) for _ in range(RUNS)]
            for _ in range(STEPS):
                step(clients)
            server.kill()
            begun = time.monotonic()
            server.start()
            step(clients)
            whole = time.monotonic() - begun
        server.kill()
    rows = [
        Row("start on an empty home, first run created", bare, "s"),
        Row(f"kill -9 with {RUNS} runs, until each made another step", whole, "s"),
        Row("beyond loading the model", whole - bare, "s", target="≤10 s"),
    ]
    note = (
        f"Each run had {STEPS} steps, with a snapshot after five: two steps of each are replayed."
    )
    write("restart", "Restart with fifty runs, tiny model", rows, note)


if __name__ == "__main__":
    main()
