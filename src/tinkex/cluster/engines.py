"""Launches engines on Ray. Never loads Ray: that is done by a process of its own, which may die."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
from importlib.metadata import version

from tinkex.cluster.placement import Placement
from tinkex.engine.frames import Closed, send_frame
from tinkex.engine.messages import Command, Event
from tinkex.engine.process.at_once import AtOnce
from tinkex.engine.process.parent import read_event
from tinkex.server.engines.child_process import ProcessWorker, worker_config
from tinkex.server.engines.worker import EngineSpec, Launch, Worker, WorkerDied
from tinkex.server.settings import RaySettings, Settings

_END_S = 5.0


def ray_engines(settings: Settings) -> Launch:
    """Launches one actor per engine on the cluster that the settings name."""
    assert settings.ray is not None
    cluster, gateway = settings.ray, Gateway(settings.ray.address)

    def launch(spec: EngineSpec) -> Worker:
        placement = _placement(spec, settings, cluster)
        return ProcessWorker(lambda: RemoteEngine(gateway, placement), gateway)

    return launch


def _placement(spec: EngineSpec, settings: Settings, cluster: RaySettings) -> Placement:
    return Placement(
        worker_config(spec, settings),
        version("tinkex"),
        str(settings.home),
        cluster.resources,
        cluster.shared,
    )


class Gateway:
    """The process that speaks to Ray for all engines of a server; made again when it is gone. It
    stays between two lives of an engine, and ends with the last engine that is stopped."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._streams = 0
        self._may_end = False

    def keep(self) -> None:
        """What the next life needs is there already."""

    def close(self) -> None:
        """End with the last stream."""
        with self._lock:
            self._may_end = True
            self._end_if_unused()

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    def open(self) -> socket.socket:
        """A stream for one more engine."""
        with self._lock:
            ours, theirs = socket.socketpair()
            with theirs:
                socket.send_fds(self._living(), [b"+"], [theirs.fileno()])
            self._streams += 1
            self._may_end = False
        return ours

    def release(self, stream: socket.socket) -> None:
        stream.close()
        with self._lock:
            self._streams -= 1
            self._end_if_unused()

    def how_it_ended(self) -> str:
        process = self._process
        try:
            code = 0 if process is None else process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return f"the process that speaks to Ray at {self.address} closed the engine's stream"
        if code < 0:
            return f"the process that speaks to Ray was killed by {signal.Signals(-code).name}"
        return f"the process that speaks to Ray gave up: the cluster at {self.address} is gone"

    def _living(self) -> socket.socket:
        if self._control is None or self._process is None or self._process.poll() is not None:
            self._end()
            self._control, theirs = socket.socketpair()
            command = [sys.executable, "-m", "tinkex.cluster.driver", str(theirs.fileno())]
            with theirs:
                self._process = subprocess.Popen(
                    [*command, self.address],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,  # Ray's pages about a death that we tell in a line
                    process_group=0,
                )
        return self._control

    def _end_if_unused(self) -> None:
        if self._may_end and not self._streams:
            self._end()

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


class RemoteEngine(AtOnce):
    """One engine's end of its stream. `send` and `receive` may be called from two threads."""

    def __init__(self, gateway: Gateway, placement: Placement) -> None:
        """Ask for the engine and return at once; its first events say what it waits for."""
        self._gateway = gateway
        self._stream = gateway.open()
        self._sending = threading.Lock()
        self._is_open = True
        self.send(placement)

    @property
    def pid(self) -> int:
        return self._gateway.pid

    def send(self, value: Command | Placement) -> None:
        """Hand over a command, in order. Raises `WorkerDied`."""
        try:
            with self._sending:
                send_frame(self._stream, value)
        except (Closed, OSError):
            raise WorkerDied(self._how_it_ended()) from None

    def receive(self) -> Event:
        """Wait for the next event. Raises `WorkerDied` when there will be none."""
        return read_event(self._stream, WorkerDied, self._how_it_ended)

    def close(self, _: float) -> None:
        """Ends the engine. Safe to call again."""
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(OSError):
                self._stream.shutdown(socket.SHUT_RDWR)
            self._gateway.release(self._stream)

    def _how_it_ended(self) -> str:
        return self._gateway.how_it_ended() if self._is_open else "the engine was stopped"
