"""An engine as a Ray actor: runs on whichever node Ray chose, knows neither the server nor Ray.

Messages arrive and leave as the parts of frames, a pickle and the buffers it refers to. Arrays stay
where Ray's object store has them, and are not copied again. `receive` always answers within a
moment, with nothing if need be, so that silence means that the node is gone.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tinkex.cluster.away import Folders, elsewhere
from tinkex.cluster.parts import Parts, from_parts, to_parts
from tinkex.engine.errors import EngineError
from tinkex.engine.messages import Event, Failed
from tinkex.engine.process.allocator import keep_freed_memory
from tinkex.engine.process.at_once import STARTUP_OP
from tinkex.engine.process.parent import ENVIRONMENT
from tinkex.engine.settings import WorkerConfig

if TYPE_CHECKING:
    from tinkex.engine.process.worker import Worker

BEAT_S = 2.0
"""Between two answers of `receive`, at most."""
UNHEARD_S = 30
"""Of its own running time, after which an engine that no server listens to ends."""
PACKAGE = "tinkex"
_BATCH = 64
"""Events of one answer, at most."""

Where: TypeAlias = tuple[str, str]
"""The version of this package on the node, and the node's name."""

Want: TypeAlias = tuple[int, str]
"""A number for a folder of the server's, and its path there."""

Received: TypeAlias = tuple[list[Parts], list[Want]]


class Listeners:
    """Whether a server still listens: one that does always has a call of `receive` under way."""

    def __init__(self, sleep: Callable[[float], object] = time.sleep) -> None:
        self._sleep = sleep
        self._heard = threading.Event()

    def note(self) -> None:
        """One listens."""
        self._heard.set()

    def wait_until_gone(self) -> None:
        """Until none has listened for so many seconds. They are counted, not compared: a process
        that stood still was not left alone meanwhile."""
        silent_s = 0
        while silent_s < UNHEARD_S:
            self._sleep(1)
            silent_s = 0 if self._heard.is_set() else silent_s + 1
            self._heard.clear()


class EngineActor:
    """One engine, one life long. `send` and `receive` run in threads of their own."""

    def __init__(self) -> None:
        for name, value in ENVIRONMENT.items():  # read when torch is loaded, which is later
            os.environ.setdefault(name, value)
        keep_freed_memory()
        # Arrays from the object store cannot be written to, and the engine does not.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        self._events: queue.SimpleQueue[Parts] = queue.SimpleQueue()
        self._worker: Worker | None = None
        self._is_built = threading.Event()
        self._early: dict[int, Parts] = {}
        self._next = 0
        self._wants: queue.SimpleQueue[Want] = queue.SimpleQueue()
        self._folders = Folders(self._want)
        self._is_away = False
        self._listeners = Listeners()

    def arrive(self) -> Where:
        return version(PACKAGE), socket.gethostname()

    def begin(self, config: WorkerConfig, model_content: str) -> None:
        """Start to load the model; the first event says how that went. An engine that is away
        from the server's files gets the name of the model's content, and asks for what it lacks."""
        self._is_away = bool(model_content)
        live = threading.Thread(target=self._live, args=(config, model_content), daemon=True)
        live.start()
        threading.Thread(target=self._end_unheard, daemon=True).start()

    def send(self, number: int, parts: Parts) -> None:
        """Take a command. They are numbered: an actor with several threads promises no order."""
        self._early[number] = parts
        while (due := self._early.pop(self._next, None)) is not None:
            self._next += 1
            self._is_built.wait()  # an engine says that it is ready a moment before it is
            assert self._worker is not None
            command = from_parts(due)
            self._worker.submit(elsewhere(command) if self._is_away else command)

    def receive(self) -> Received:
        """The events since the last call, or after a moment none, and the folders it asks for."""
        self._listeners.note()
        found: list[Parts] = []
        wants: list[Want] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._events.get(timeout=BEAT_S))
            while len(found) < _BATCH:
                found.append(self._events.get_nowait())
        with contextlib.suppress(queue.Empty):
            while True:
                wants.append(self._wants.get_nowait())
        return [parts for parts in found if parts], wants

    def take(self, number: int, name: str, offset: int, part: NDArray[np.uint8]) -> None:
        """A part of a file of a folder that was asked for."""
        self._folders.take(number, name, offset, part)

    def end(self, number: int, problem: str) -> None:
        """All of a folder has come, or why not."""
        self._folders.end(number, problem)

    def _end_unheard(self) -> None:
        """One that its server gave up while its node was cut off has been ended by Ray, or should
        have been: that does not always come to pass."""
        self._listeners.wait_until_gone()
        os._exit(1)

    def _want(self, number: int, path: str) -> None:
        self._wants.put((number, path))
        self._events.put([])  # wakes whoever receives

    def _emit(self, event: Event) -> None:
        self._events.put(to_parts(event))

    def _live(self, config: WorkerConfig, model_content: str) -> None:
        try:
            if self._is_away:
                model = self._folders.model(config.model, model_content)
                config = replace(config, model=str(model))
            from tinkex.engine.process.building import build_worker

            fetch = self._folders.fetch if self._is_away else None
            self._worker = build_worker(config, self._emit, fetch)
            self._is_built.set()
        except (EngineError, OSError, ImportError, ValueError, RuntimeError) as error:
            self._emit(Failed(STARTUP_OP, "server", f"the engine could not start: {error}"))
            return
        except BaseException as error:
            self._emit(Failed(STARTUP_OP, "server", f"the engine could not start: {error!r}"))
            raise
        try:
            self._worker.run()
        except BaseException as error:
            self._emit(Failed(STARTUP_OP, "server", f"the engine stopped: {error!r}"))
            raise
