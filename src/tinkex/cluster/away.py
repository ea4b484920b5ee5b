"""Files of a server that are not on an engine's node: marked in commands, and fetched when needed.

An engine away from the server reads and writes no path of the server's. A path in its commands is
marked as not of this host; its content is fetched from the server over Ray, or from an object store
if the reference has links.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tinkex.engine.errors import OutOfReach
from tinkex.engine.messages import Command, LoadRun, LoadWeights, SaveRun, ServeRun, WeightsRef
from tinkex.engine.own_folder import OwnFolder
from tinkex.engine.process.fetched_weights import fetch_by_http

AWAY = "server:"
"""In front of a path that lies with the server."""

Ask: TypeAlias = Callable[[int, str], None]


def marked(path: str) -> str:
    return AWAY + path


def elsewhere(command: Command) -> Command:
    """The command as an engine away from the server is to read it."""
    if isinstance(command, SaveRun | ServeRun):
        return dataclasses.replace(command, folder=marked(command.folder))
    if isinstance(command, LoadRun | LoadWeights):
        return dataclasses.replace(command, source=_elsewhere(command.source))
    return command


def _elsewhere(ref: WeightsRef) -> WeightsRef:
    """Folders never change, so one whose content has no name may be known by its path."""
    digest = ref.digest or hashlib.sha256(ref.path.encode()).hexdigest()
    return dataclasses.replace(ref, path=marked(ref.path), digest=digest)


@dataclass(slots=True)
class _Coming:
    """A folder on its way."""

    folder: Path
    is_here: threading.Event = field(default_factory=threading.Event)
    problem: str = ""


class Folders:
    """Folders fetched from the server. `ask` sends it a number and a path; parts of files come in
    any order, then the word that all have come."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._coming: dict[int, _Coming] = {}
        self._numbers = itertools.count()

    def fetch(self, ref: WeightsRef, folder: Path) -> None:
        """Fill an empty folder, in any thread. Raises `OutOfReach`."""
        if ref.files:
            fetch_by_http(ref, folder)
        else:
            self._fetch(ref.path.removeprefix(AWAY), folder)

    def model(self, path: str, content: str) -> Path:
        """A model's folder in this node's cache, named by its content."""
        cache = Path(os.environ.get("TINKEX_CACHE") or Path.home() / ".cache" / "tinkex")
        here = cache / f"from-server-{content}"
        if not here.is_dir():
            cache.mkdir(parents=True, exist_ok=True)
            with OwnFolder("arriving-", cache) as draft:
                self._fetch(path, draft)
                try:
                    draft.rename(here)
                except OSError:
                    if not here.is_dir():  # another engine of this node may have been faster
                        raise
        return here

    def take(self, number: int, name: str, offset: int, part: NDArray[np.uint8]) -> None:
        """A part of a file."""
        path = self._coming[number].folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(part.data)

    def end(self, number: int, problem: str) -> None:
        """All has come, or why not."""
        self._coming[number].problem = problem
        self._coming[number].is_here.set()

    def _fetch(self, path: str, folder: Path) -> None:
        number = next(self._numbers)
        coming = self._coming[number] = _Coming(folder)
        self._ask(number, path)
        coming.is_here.wait()
        del self._coming[number]
        if coming.problem:
            raise OutOfReach(coming.problem)
