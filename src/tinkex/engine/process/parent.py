"""An engine in a child process, as its parent sees it. Imports no torch.

Commands go out and events come in over a pair of sockets; the child ends when its end closes, so an
engine never outlives its parent.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

from tinkex.engine.frames import Closed, receive_frame, send_frame
from tinkex.engine.messages import Command, Event, Failed, Ready
from tinkex.engine.process.at_once import STARTUP_OP, AtOnce
from tinkex.engine.settings import WorkerConfig

SPARE = "spare"
"""The argument of a child that loads its libraries before it is told what to do."""

ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "4000",
    "MKL_CBWR": "AUTO,STRICT",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    **({"OPENBLAS_NUM_THREADS": "1"} if platform.machine() in ("x86_64", "AMD64") else {}),
}
"""What libraries read as they load, unless the user has said otherwise.

An engine shares its cores with the server and others. Threads that spin for long while they wait
would take the very core that the awaited one needs, and make everything many times slower; but the
next product of a decoding step comes within a tenth of a millisecond, too soon to be woken for.
GNU's runtime follows the count, others the policy. The third makes MKL round a product's rows one
way on Intel's processors, however many rows and threads there are: another tenant's tokens in the
batch, or a replay without them, must not change a bit. The fourth asks for huge pages: a training
step goes through tens of megabytes again and again. The last is numpy's library, which makes the
small products of `sampling.cpu_decode`; elsewhere than here torch may use it too."""


class WorkerDied(Exception):
    """The child is gone, or could not start; the text says how. `said_so`: it said that itself, and
    the next one would say the same."""

    def __init__(self, text: str, said_so: bool = False) -> None:
        super().__init__(text)
        self.said_so = said_so


class Child:
    """A process that becomes an engine when it is told which model. A `spare` one loads its
    libraries meanwhile, which is a good part of a start."""

    def __init__(self, spare: bool = False) -> None:
        self.stream, theirs = socket.socketpair()
        command = [sys.executable, "-m", "tinkex.engine.process.child", str(theirs.fileno())]
        with theirs:
            # A group of its own: a Ctrl-C at the terminal is the parent's to handle, also while
            # the child is still importing and could not ignore it yet.
            self.process = subprocess.Popen(
                [*command, SPARE] if spare else command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                process_group=0,
                env=ENVIRONMENT | os.environ,
            )

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def close(self, timeout: float = 10.0) -> None:
        """End it: ask, wait up to `timeout` seconds, then kill. Safe to call again."""
        with contextlib.suppress(OSError):
            self.stream.shutdown(socket.SHUT_RDWR)
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.stream.close()


def read_event(
    stream: socket.socket, died: Callable[[str, bool], Exception], how_it_ended: Callable[[], str]
) -> Event:
    """Wait for an engine's next event. When there will be none, raises what `died` makes of the
    reason and of whether the engine gave it itself."""
    try:
        event: Event = receive_frame(stream)
    except (Closed, OSError):
        raise died(how_it_ended(), False) from None
    if isinstance(event, Failed) and event.op == STARTUP_OP:
        raise died(event.message, True)
    return event


class RemoteWorker(AtOnce):
    """One child process for one model. `send` and `receive` may be called from two threads."""

    def __init__(self, config: WorkerConfig, spare: Child | None = None) -> None:
        """Start the process, or turn a spare one into an engine, and return at once; its first
        event is `Ready`."""
        self._child = spare if spare is not None and spare.is_alive else Child()
        self._stream, self._process = self._child.stream, self._child.process
        self._sending = threading.Lock()
        self._send(config)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ready(self) -> Ready:
        """Wait for the first event. Raises `WorkerDied` with the reason if there is none."""
        event = self.receive()
        assert isinstance(event, Ready)
        return event

    def send(self, command: Command) -> None:
        """Send a command, in order. Raises `WorkerDied`."""
        self._send(command)

    def receive(self) -> Event:
        """Wait for the next event. Raises `WorkerDied` when there will be none."""
        return read_event(self._stream, WorkerDied, self._how_it_ended)

    def events(self) -> Iterator[Event]:
        """Every event until the child ends, which raises `WorkerDied`."""
        while True:
            yield self.receive()

    def close(self, timeout: float = 10.0) -> None:
        """End the child: ask, wait up to `timeout` seconds, then kill. Safe to call again."""
        self._child.close(timeout)

    def _send(self, value: object) -> None:
        try:
            with self._sending:
                send_frame(self._stream, value)
        except (Closed, OSError):
            raise WorkerDied(self._how_it_ended()) from None

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(timeout=10.0)
        except subprocess.TimeoutExpired:
            return "the engine process closed its stream without ending"
        if code < 0:
            return f"the engine process was killed by {signal.Signals(-code).name}"
        return f"the engine process ended with status {code}"
