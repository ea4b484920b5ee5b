"""Beside an engine on a GPU a spare process waits: for the next life, never beyond the server's."""

from __future__ import annotations

import queue
import socket
from typing import Any

import pytest

from tinkex.engine.messages import Event, Ready
from tinkex.server.engines.child_process import ProcessWorker, Spare
from tinkex.server.engines.worker import WorkerDied


class _Remote:
    """A child process in name only, whose events always have to be waited for."""

    pid = 1

    def __init__(self, device: str) -> None:
        self._stream, self._other = socket.socketpair()
        self._other.send(b"!")
        ready = Ready("FakeForCausalLM", 1000, 4096, 1, device, "float32", 64)
        self._events: queue.Queue[Event | None] = queue.Queue()
        self._events.put(ready)

    def fileno(self) -> int:
        return self._stream.fileno()

    def receive_at_once(self) -> Event | None:
        return None

    def receive(self) -> Event:
        event = self._events.get()
        if event is None:
            raise RuntimeError("the process was killed")
        return event

    def close(self, _: float) -> None:
        self._events.put(None)
        self._stream.close()
        self._other.close()

    def die(self) -> None:
        self._events.put(None)


class _Child:
    def __init__(self) -> None:
        self.closed = False

    def close(self, _: float) -> None:
        self.closed = True


class _World:
    def __init__(self, device: str) -> None:
        self.made: list[_Child] = []
        self.taken: list[Any] = []
        self.remotes: list[_Remote] = []
        self.spare = Spare(self._child)
        self._device = device

    def _child(self) -> _Child:
        self.made.append(_Child())
        return self.made[-1]

    def worker(self) -> ProcessWorker:
        def start() -> _Remote:
            self.taken.append(self.spare.take())
            self.remotes.append(_Remote(self._device))
            return self.remotes[-1]

        return ProcessWorker(start, self.spare)


async def test_the_next_life_gets_the_spare_process_and_another_waits() -> None:
    world = _World("cuda:0")
    first = world.worker()
    await first.start(print)
    world.remotes[0].die()
    with pytest.raises(WorkerDied):
        await first.receive()
    await first.stop()
    second = world.worker()
    await second.start(print)
    assert world.taken == [None, world.made[0]]
    assert [child.closed for child in world.made] == [False, False]
    await second.stop()
    assert [child.closed for child in world.made] == [False, True], "with the server it goes"


async def test_on_a_cpu_nothing_waits() -> None:
    world = _World("cpu")
    worker = world.worker()
    await worker.start(print)
    await worker.stop()
    assert world.made == []
