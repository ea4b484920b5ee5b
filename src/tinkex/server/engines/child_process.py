"""The engine's process as a `Worker`: small messages are written at once, large ones by threads.

The engine is found by name when the first worker starts; this floor imports only its messages. A
spare process with its libraries loaded waits for each engine on a GPU: if the engine dies, the next
one is ready seconds sooner.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from tinkex.engine.messages import Command, Event, ForwardBackward, Ready, Waiting
from tinkex.server.engines.worker import EngineSpec, Launch, Tell, Worker, WorkerDied
from tinkex.server.settings import Settings

_SETTINGS = "tinkex.engine.settings"
_SPARE_RUNS = 8
"""Spare places: the engine accepts more runs than the server ever sends, so that only the server's
limit counts."""
_WITH_SPARE = "cuda"
"""Device types whose hosts have half a gigabyte to spare for a spare process."""
_FEW_DATA = 32
"""Datums of one forward pass beyond which a thread serializes the message."""
_CLOSE_S = 2.0
"""Seconds for an engine to end by itself. It holds nothing that the log and the snapshots do
not."""


def engine_processes(settings: Settings) -> Launch:
    """Launches one child process per engine."""

    spares: dict[str, Spare] = {}

    def launch(spec: EngineSpec) -> Worker:
        spare = spares.setdefault(spec.name, Spare(_spare_child))
        return ProcessWorker(lambda: _start(spec, settings, spare.take()), spare)

    return launch


def engine_numbers() -> dict[str, type[int] | type[float]]:
    """The engine's settings that are numbers, by name: what an operator may choose."""
    fields = dataclasses.fields(_config())
    kinds = {field.name: str(field.type).removesuffix(" | None") for field in fields}
    numbers: dict[str, type[int] | type[float]] = {"int": int, "float": float}
    return {name: numbers[kind] for name, kind in kinds.items() if kind in numbers}


def engine_ranges() -> Mapping[str, tuple[int, int]]:
    """Allowed ranges of the settings that may be more than just positive."""
    ranges: Mapping[str, tuple[int, int]] = importlib.import_module(_SETTINGS).RANGES
    return ranges


def _config() -> Any:
    return importlib.import_module(_SETTINGS).WorkerConfig


def worker_config(spec: EngineSpec, settings: Settings) -> Any:
    """The settings of one engine of a server."""
    chosen: dict[str, Any] = {
        "max_runs": settings.scheduling.resident_runs,
        "threads": spec.threads,
        "memory_share": spec.memory_share,
        **settings.engine,
    }
    chosen["max_runs"] += _SPARE_RUNS
    chosen |= {"dtype": settings.dtype, "base": settings.base, "steady": settings.steady}
    return _config()(model=spec.model.source, device=spec.device, **chosen)


def _start(spec: EngineSpec, settings: Settings, spare: Any) -> Any:
    remote = importlib.import_module("tinkex.engine.process.parent")
    return remote.RemoteWorker(worker_config(spec, settings), spare)


def _spare_child() -> Any:
    return importlib.import_module("tinkex.engine.process.parent").Child(spare=True)


class Reserve(Protocol):
    """What is kept between two lives of an engine for the next one."""

    def keep(self) -> None: ...

    def close(self) -> None: ...


class Spare:
    """At most one spare process with loaded libraries, for whichever life comes next."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._child: Any = None

    def keep(self) -> None:
        """Have a spare process from now on: starts one."""
        if self._child is None:
            self._child = self._make()

    def take(self) -> Any:
        """The spare process, or None."""
        child, self._child = self._child, None
        return child

    def close(self) -> None:
        child = self.take()
        if child is not None:
            child.close(_CLOSE_S)


class ProcessWorker:
    """An engine's process driven by the event loop. One thread sends and one receives where the
    loop would have to wait."""

    def __init__(self, start: Callable[[], Any], spare: Reserve) -> None:
        self._start = start
        self._spare = spare
        self._is_lost = self._is_stopping = False
        self._remote: Any = None
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="tinkex-engine-send")
        self._receiver = ThreadPoolExecutor(1, thread_name_prefix="tinkex-engine-receive")
        self._unsent: set[Future[None]] = set()
        self._events: asyncio.Queue[Event | WorkerDied] = asyncio.Queue()

    @property
    def pid(self) -> int | None:
        return None if self._remote is None else int(self._remote.pid)

    async def start(self, tell: Tell) -> Ready:
        loop = asyncio.get_running_loop()
        self._remote = await loop.run_in_executor(self._sender, self._start)
        self._listen(loop)
        while isinstance(event := await self._next(), Waiting):
            tell(event.reason)
        assert isinstance(event, Ready)
        if event.device.startswith(_WITH_SPARE):
            await loop.run_in_executor(None, self._spare.keep)
        return event

    async def send(self, command: Command) -> None:
        if not self._unsent and _is_small(command) and self._remote.send_at_once(command):
            return
        sending = self._sender.submit(self._send, command)
        self._unsent.add(sending)
        sending.add_done_callback(self._unsent.discard)
        await asyncio.wrap_future(sending)

    async def receive(self) -> Sequence[Event]:
        return [await self._next()]

    async def stop(self) -> None:
        """End the process. If it was lost, the spare one stays for the next life."""
        loop = asyncio.get_running_loop()
        self._is_stopping = True
        if not self._is_lost:
            await loop.run_in_executor(None, self._spare.close)
        if self._remote is not None:
            loop.remove_reader(self._remote.fileno())
            await loop.run_in_executor(None, self._remote.close, _CLOSE_S)
        self._sender.shutdown(wait=False)
        await loop.run_in_executor(None, self._receiver.shutdown)

    async def _next(self) -> Event:
        event = await self._events.get()
        if isinstance(event, WorkerDied):
            self._is_lost = True
            raise event
        return event

    def _send(self, command: Command) -> None:
        try:
            self._remote.send(command)
        except Exception as error:
            raise WorkerDied(str(error)) from error

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_stopping:
            loop.add_reader(self._remote.fileno(), self._readable, loop)

    def _readable(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take an event that has arrived; let a thread wait for one that has not."""
        event = self._remote.receive_at_once()
        if event is not None:
            self._events.put_nowait(event)
            return
        loop.remove_reader(self._remote.fileno())
        awaited = loop.run_in_executor(self._receiver, self._receive)
        awaited.add_done_callback(functools.partial(self._received, loop))

    def _receive(self) -> Event | WorkerDied:
        try:
            event: Event = self._remote.receive()
        except Exception as error:
            return WorkerDied(str(error), getattr(error, "said_so", False))
        return event

    def _received(
        self, loop: asyncio.AbstractEventLoop, awaited: asyncio.Future[Event | WorkerDied]
    ) -> None:
        event = awaited.result()
        self._events.put_nowait(event)
        if not isinstance(event, WorkerDied):
            self._listen(loop)


def _is_small(command: Command) -> bool:
    """Whether the message is quick to serialize."""
    return not isinstance(command, ForwardBackward) or len(command.data) <= _FEW_DATA
