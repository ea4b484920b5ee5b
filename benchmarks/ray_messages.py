"""What a message to an engine and back costs: through Ray, and through the child process's socket.

Both ways carry the same frames with the server's own code, to the same engine of a tiny model. A
small message is a `Ping`. A large one is a `ForwardBackward` for a run that does not exist, with 4
MB of arrays: the engine refuses it at once, so that only the way is timed.

    python benchmarks/ray_messages.py
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from report import Row, write

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.ray_cluster import RayCluster
from tinkex.cluster.engines import Gateway, RemoteEngine
from tinkex.cluster.placement import Placement
from tinkex.engine.messages import Command, Datum, Done, Failed, ForwardBackward, Ping, Ready
from tinkex.engine.process.parent import RemoteWorker
from tinkex.engine.settings import WorkerConfig
from tinkex.server.engines.model_sources import default_cache, resolve

MODEL = "tinkex/tiny-llama"
ROUNDS = 200
LARGE_ROUNDS = 60
LARGE_BYTES = 4 << 20


def large(op: str) -> ForwardBackward:
    tokens = np.zeros(LARGE_BYTES // 8, np.int32)
    weights = np.zeros(LARGE_BYTES // 8, np.float32)
    return ForwardBackward(op, "nobody", (Datum(tokens, {"weights": weights}),), "cross_entropy")


def round_trip_ms(engine: Any, make: Any, rounds: int) -> float:
    """The median of many, one at a time."""
    took = []
    for number in range(rounds):
        command: Command = make(str(number))
        begun = time.perf_counter()
        engine.send(command)
        answer = engine.receive()
        took.append(time.perf_counter() - begun)
        assert isinstance(answer, Done | Failed), answer
        assert answer.op == str(number)
    return statistics.median(took[rounds // 5 :]) * 1e3


def measured(engine: Any) -> tuple[float, float]:
    while not isinstance(engine.receive(), Ready):
        pass
    time.sleep(3.0)  # what a fresh engine gets ready in idle time
    small = round_trip_ms(engine, Ping, ROUNDS)
    return small, round_trip_ms(engine, large, LARGE_ROUNDS)


def main() -> None:
    folder = resolve(MODEL, default_cache(os.environ), os.environ).folder
    config = WorkerConfig(str(folder), device="cpu")
    child = RemoteWorker(config)
    small_child, large_child = measured(child)
    child.close()
    with RayCluster() as cluster:
        cluster.add(default_cache(os.environ))
        gateway = Gateway(cluster.address)
        placement = Placement(config, _version(), str(folder.parent), shared=("/",))
        engine = RemoteEngine(gateway, placement)
        small_ray, large_ray = measured(engine)
        gateway.close()
        engine.close(5.0)
    rows = [
        Row("a small message and its answer", small_ray, "ms", against=small_child),
        Row("a message of 4 MB and a small answer", large_ray, "ms", against=large_child),
    ]
    note = (
        "Ours is through Ray (another Ray node on the same machine: every large buffer crosses "
        "from one node's object store to the other's), the alternative is the engine as a child "
        "process. The machine was shared with other work while both were measured; compare the "
        "two, not either with other pages."
    )
    write("ray_messages", "Messages to an engine on Ray", rows, note)


def _version() -> str:
    from importlib.metadata import version

    return version("tinkex")


if __name__ == "__main__":
    main()
