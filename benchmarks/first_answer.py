"""A sampler's first answer on an engine that lacks its weights, through `tinkex serve`.

    python benchmarks/first_answer.py files|cached|empty|elsewhere…

The adapter has the size of an 8B model's at rank 32, 349 MB in 504 tensors. Its base has the layers
of an 8B model and an eighth of their widths, the adapter eight times the rank. So a sample's own
pass is cheap; it is also timed alone, once the weights are loaded. There are two engines, a prompt
of 16 tokens and one drawn token. Every turn has new weights: a client is made for their path, its
first sample goes to the only engine that takes work, then that one is drained and the next sample
goes to the other. The service is `rclone serve s3`. All processes share the cores.
What was saved is on the disk, and 6 GiB of memory were touched, before the first turn.

One group of rows for each place of the weights: files in the home; an object store whose cache has
them (cached) or is empty, with local engines; an object store with engines on other Ray nodes,
which share no folder with the server, and a cache that stays empty.
"""

from __future__ import annotations

import mmap
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch
from front_door_gpu import QWEN3_8B
from report import Row, update
from seeded_model import write_seeded_folder

from support.live_server import LiveServer, start
from support.object_service import BUCKET, object_service
from support.ray_cluster import RayCluster
from tinkex import SamplingClient, ServiceClient, types

RANK, TURNS = 256, 4
MODEL = QWEN3_8B | {
    "vocab_size": 512, "hidden_size": 512, "intermediate_size": 1536, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 2048,
}  # fmt: skip
NAME = "narrow-8b"
ENGINES = (f"{NAME}#0", f"{NAME}#1")
PROMPT = 16
DATUM = types.Datum(
    model_input=types.ModelInput.from_ints(list(range(PROMPT))),
    loss_fn_inputs={"target_tokens": list(range(1, PROMPT + 1)), "weights": [1.0] * PROMPT},
)
TOUCHED = 6 << 30
WHERE = {
    "files": "files on this disk",
    "cached": "object store, in the cache",
    "empty": "object store, empty cache",
    "elsewhere": "object store, engines elsewhere",
}


class Turn(NamedTuple):
    """Seconds of one turn, or of all turns."""

    made: Any
    first: Any
    another: Any
    again: Any


def took(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def drawn(sampler: SamplingClient) -> None:
    """One token after a prompt nobody has sent before."""
    prompt = types.ModelInput.from_ints([random.randrange(256) for _ in range(PROMPT)])
    sampler.sample(prompt, 1, types.SamplingParams(max_tokens=1)).result()


@contextmanager
def server(home: Path, *arguments: str) -> Iterator[LiveServer]:
    own = ["--engine", f"max_rank={RANK}", "--engines", "2", "--dtype", "float32"]
    running = LiveServer(start(home, [*own, *arguments]), home)
    try:
        yield running
    finally:
        running.stop()


def engine(running: LiveServer, word: str, name: str) -> None:
    command = [sys.executable, "-m", "tinkex", "engine", word, name, "--home", str(running.home)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def saved(running: LiveServer) -> list[str]:
    """Weights of a run, saved for samplers after each of a few steps; their paths. Equal ones would
    be fetched once: an engine elsewhere keeps them by what they contain."""
    paths = []
    with ServiceClient(base_url=running.url, api_key="tml-bench") as service:
        run = service.create_lora_training_client(NAME, rank=RANK, train_unembed=False)
        for number in range(TURNS):
            run.forward_backward([DATUM], "cross_entropy").result()
            run.optim_step(types.AdamParams(learning_rate=1e-3)).result()
            paths.append(run.save_weights_for_sampler(str(number)).result().path)
    return paths


def touch_memory() -> None:
    """Have this machine's memory from its host, if it has one: the first touch of a page there
    costs many times what its use does, and is no part of an answer."""
    mmap.mmap(-1, TOUCHED, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()


def turn(running: LiveServer, service: ServiceClient, path: str, order: tuple[str, str]) -> Turn:
    """First on one engine, which alone takes work when this begins, then on the other."""
    here, there = order
    begun = time.perf_counter()
    sampler = service.create_sampling_client(model_path=path)
    made = time.perf_counter() - begun
    first = took(lambda: drawn(sampler))
    engine(running, "resume", there)
    engine(running, "drain", here)
    another = took(lambda: drawn(sampler))
    return Turn(made, first, another, took(lambda: drawn(sampler)))


def measured(running: LiveServer, paths: list[str]) -> Turn:
    service = ServiceClient(base_url=running.url, api_key="tml-bench")
    base = service.create_sampling_client(base_model=NAME)
    for name in ENGINES:  # what a fresh engine does only once is none of this
        engine(running, "drain", name)
        drawn(base)
        engine(running, "resume", name)
    engine(running, "drain", ENGINES[1])
    touch_memory()
    turns = []
    for number, path in enumerate(paths):
        here = number % 2
        turns.append(turn(running, service, path, (ENGINES[here], ENGINES[1 - here])))
    return Turn(*zip(*turns, strict=True))


def rows(where: str, found: Turn) -> list[Row]:
    target, median = "≤0.5 s", statistics.median
    both, again = found.first + found.another, median(found.again)
    return [
        Row(f"{where}: first answer on an engine", median(found.first), "s", target=target),
        Row(f"{where}: then on the other engine", median(found.another), "s", target=target),
        Row(f"{where}: the least of all turns", min(both), "s"),
        Row(f"{where}: the median without the sample's own pass", median(both) - again, "s"),
        Row(f"{where}: a sample once they are there", again, "s"),
        Row(f"{where}: the client made before", median(found.made), "s"),
    ]


@contextmanager
def nodes(root: Path) -> Iterator[list[str]]:
    """Two Ray nodes with room for an engine each; what a server is told of them."""
    with RayCluster() as cluster:
        for node in "ab":
            cluster.add(root / node)
        yield ["--ray", cluster.address]


def measure(root: Path, where: str, *objects: str) -> list[Row]:
    home, model = root / where, ["--model", str(root / NAME)]
    with server(home, *model, *objects) as running:
        paths = saved(running)
    if where in ("empty", "elsewhere"):
        shutil.rmtree(home / "cache")
    os.sync()
    elsewhere = nodes(root) if where == "elsewhere" else nullcontext([])
    with elsewhere as ray, server(home, *model, *ray) as running:
        found = measured(running, paths)
    if where == "elsewhere":
        assert not list((home / "cache" / "weights").iterdir()), "the server fetched nothing"
    return rows(WHERE[where], found)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root, found = Path(folder), list[Row]()
        write_seeded_folder(MODEL, root / NAME, torch.device("cpu"))
        service = stack.enter_context(object_service(root / "s3"))
        # Not through the proxy that tests cut: it would share this process's interpreter.
        os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{service.port}"
        for where in sys.argv[1:] or WHERE:
            store = [] if where == "files" else ["--objects", f"s3://{BUCKET}/{where}"]
            found += measure(root, where, *store)
    title = "A sampler's first answer on another engine"
    update("first_answer", title, found, __doc__ or "", whole=not sys.argv[1:])


if __name__ == "__main__":
    main()
