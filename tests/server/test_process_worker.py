"""An engine's messages cross in order, whether the loop carries them or threads that may wait."""

from __future__ import annotations

import asyncio
import socket
import threading

import numpy as np
import pytest

from tinkex.engine.frames import SMALL, receive_frame, send_frame
from tinkex.engine.messages import (
    Datum,
    Done,
    Failed,
    ForwardBackward,
    ForwardBackwardResult,
    OptimStep,
    Ready,
)
from tinkex.engine.process.at_once import STARTUP_OP, AtOnce
from tinkex.engine.process.parent import read_event
from tinkex.server.engines.child_process import ProcessWorker, Spare
from tinkex.server.engines.worker import WorkerDied

READY = Ready("FakeForCausalLM", 1000, 4096, 1, "cpu", "float32", 64)


class _Remote(AtOnce):
    """The parent's end of a stream without a process."""

    pid = 1

    def __init__(self) -> None:
        self._stream, self.engine = socket.socketpair()
        self._sending = threading.Lock()
        self.waited: list[str] = []

    def send(self, command: object) -> None:
        self.waited.append("sent")
        with self._sending:
            send_frame(self._stream, command)

    def receive(self) -> object:
        self.waited.append("received")
        return read_event(self._stream, WorkerDied, lambda: "it was killed")

    def close(self, _: float) -> None:
        self._stream.shutdown(socket.SHUT_RDWR)
        self._stream.close()
        self.engine.close()


async def started() -> tuple[ProcessWorker, _Remote]:
    remote = _Remote()
    worker = ProcessWorker(lambda: remote, Spare(lambda: None))
    send_frame(remote.engine, READY)
    assert await worker.start(print) == READY
    remote.waited.clear()
    return worker, remote


def large(op: str) -> ForwardBackward:
    weights = np.ones(SMALL, np.float32)
    return ForwardBackward(op, "run", (Datum(np.arange(3), {"weights": weights}),), "cross_entropy")


def step(op: str) -> OptimStep:
    return OptimStep(op, "run", "adamw", {})


async def test_what_is_small_wakes_no_thread() -> None:
    worker, remote = await started()
    await worker.send(step("a"))
    assert receive_frame(remote.engine).op == "a"
    send_frame(remote.engine, Done("a", None, 0.1))
    (event,) = await worker.receive()
    assert isinstance(event, Done)
    assert event.op == "a"
    assert remote.waited == []
    await worker.stop()


async def test_small_commands_never_overtake_a_large_one_nor_events() -> None:
    worker, remote = await started()
    commands = [step("a"), large("b"), step("c"), large("d"), step("e"), step("f")]
    sends = [asyncio.ensure_future(worker.send(command)) for command in commands]
    found = await asyncio.to_thread(
        lambda: [receive_frame(remote.engine).op for _ in range(len(commands))]
    )
    await asyncio.gather(*sends)
    assert found == list("abcdef")
    big = ForwardBackwardResult(({"logprobs": np.ones(SMALL, np.float32)},), {})
    events = [Done("a", None), Done("b", big), Done("c", None)]
    sending = asyncio.to_thread(lambda: [send_frame(remote.engine, event) for event in events])
    sent = asyncio.ensure_future(sending)
    found = [
        event.op for _ in events for event in await worker.receive() if isinstance(event, Done)
    ]
    assert found == list("abc")
    await sent
    assert "received" in remote.waited
    await worker.stop()


async def test_the_end_of_the_process_is_heard_with_its_reason_after_all_it_said() -> None:
    worker, remote = await started()
    send_frame(remote.engine, Done("last", None))
    remote.engine.close()
    assert isinstance((await worker.receive())[0], Done)
    with pytest.raises(WorkerDied, match="it was killed") as killed:
        await worker.receive()
    assert not killed.value.said_so
    with pytest.raises(WorkerDied):
        await worker.send(step("a"))
    await worker.stop()


async def test_an_engine_that_cannot_start_says_why() -> None:
    remote = _Remote()
    worker = ProcessWorker(lambda: remote, Spare(lambda: None))
    send_frame(remote.engine, Failed(STARTUP_OP, "server", "no such model"))
    with pytest.raises(WorkerDied, match="no such model") as refused:
        await worker.start(print)
    assert refused.value.said_so
    await worker.stop()
