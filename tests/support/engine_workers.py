"""Workers for tests, in this thread or in a child process, and what is sent to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from support.sampling import (
    DEVICE,
    prompt_of,
    tiny_folder,
)
from support.training import adam_step
from tinkex.engine.messages import (
    Command,
    Datum,
    Done,
    Event,
    Failed,
    ForwardBackward,
    OptimStep,
    Ready,
)
from tinkex.engine.process.building import build_worker
from tinkex.engine.process.parent import RemoteWorker
from tinkex.engine.settings import WorkerConfig


def config(**changes: object) -> WorkerConfig:
    settings = {"kv_bytes": 16 << 20, "device": DEVICE, "dtype": "float32"} | changes
    return WorkerConfig(str(tiny_folder()), **settings)


class Local:
    """The same face for a worker in this thread as `RemoteWorker` has."""

    def __init__(self, **changes: object) -> None:
        self._events: list[Event] = []
        self.worker = build_worker(config(**changes), self._events.append)

    def send(self, command: Command) -> None:
        self.worker.submit(command)

    def receive(self) -> Event:
        while not self._events:
            self.worker.turn()
        return self._events.pop(0)

    def close(self) -> None:
        self.worker.stop()
        self.worker.run()


Engine = Local | RemoteWorker


@contextmanager
def engine(kind: str) -> Iterator[Engine]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    made: Engine = Local() if kind == "thread" else RemoteWorker(config())
    try:
        assert isinstance(made.receive(), Ready)
        yield made
    finally:
        made.close()
        torch.set_num_threads(before)


def answers(worker: Engine, *commands: Command) -> dict[str, Event]:
    """Send all, then wait until each is answered exactly once."""
    for command in commands:
        worker.send(command)
    found: dict[str, Event] = {}
    while len(found) < len(commands):
        event = worker.receive()
        if isinstance(event, Done | Failed):
            assert event.op not in found
            found[event.op] = event
    return found


def result_of(event: Event) -> object:
    assert isinstance(event, Done), event
    return event.result


def datum(seed: int, length: int = 24) -> Datum:
    tokens = prompt_of(seed, length + 1)
    weights = np.ones(length, np.float32)
    return Datum(tokens[:-1], {"target_tokens": tokens[1:].astype(np.int64), "weights": weights})


def forward_backward(op: str, run: str, *data: Datum) -> ForwardBackward:
    return ForwardBackward(op, run, data, "cross_entropy")


def step(op: str, run: str) -> OptimStep:
    return OptimStep(op, run, "adamw", adam_step(run).params)


def leaves(value: object) -> Iterator[object]:
    """The plain values and arrays inside a result, in order."""
    if isinstance(value, tuple | list):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, dict):
        for key in sorted(value):
            yield key
            yield from leaves(value[key])
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            if name != "prepared":  # how far idle time went
                yield from leaves(getattr(value, name))
    else:
        yield value


def assert_same(one: object, two: object) -> None:
    """Equal, numbers within rounding: what shares a batch depends on when it arrives."""
    for left, right in zip(leaves(one), leaves(two), strict=True):
        if (isinstance(left, np.ndarray) and left.dtype.kind == "f") or isinstance(left, float):
            np.testing.assert_allclose(left, right, atol=1e-4, rtol=1e-4)
        elif isinstance(left, np.ndarray):
            np.testing.assert_array_equal(left, right)
        else:
            assert left == right
