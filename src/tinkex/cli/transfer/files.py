"""Fetches a set of files, several at once, each by its own URL."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue

from tinkex.cli.deadline import Deadline
from tinkex.cli.errors import CliError
from tinkex.cli.terminal.progress import Bar
from tinkex.cli.transfer.names import is_safe_name
from tinkex.cli.transfer.parts import Part, Stopped, Tags
from tinkex.cli.transfer.source import Source

WORKERS = 4
_JOIN_SECONDS = 0.2  # a thread stuck in a read is left behind; it writes nothing any more


def fetch_files(
    source: Source,
    names: list[str],
    link: Callable[[str, bool], str],
    folder: Path,
    bar: Bar,
    tags: Tags,
    deadline: Deadline,
) -> int:
    """Brings all files in below `folder` and returns their size together.

    `link(name, renew)` gives a file's URL. The first failure, or the deadline, calls the others
    off.
    """
    for name in names:
        if not is_safe_name(name):
            raise CliError(f"Unsafe file path in checkpoint: {name}")
    parts = [_part(source, name, link, folder) for name in sorted(names)]
    return _Crew(parts, bar, tags).work(deadline)


def _part(source: Source, name: str, link: Callable[[str, bool], str], folder: Path) -> Part:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return Part(source, name, lambda renew: link(name, renew), path)


class _Crew:
    """Threads that share a queue of files. Daemons: none can keep the process alive."""

    def __init__(self, parts: list[Part], bar: Bar, tags: Tags) -> None:
        self._parts: SimpleQueue[Part] = SimpleQueue()
        for part in parts:
            self._parts.put(part)
        self._bar = bar
        self._tags = tags
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._bytes = 0
        self._lock = threading.Lock()
        count = min(WORKERS, len(parts))
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(count)]

    def work(self, deadline: Deadline) -> int:
        for thread in self._threads:
            thread.start()
        try:
            for thread in self._threads:
                thread.join(deadline.remaining())
                if thread.is_alive():
                    raise TimeoutError
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join(_JOIN_SECONDS)
        if self._failure is not None:
            raise self._failure
        return self._bytes

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                size = self._parts.get_nowait().fetch(self._bar, self._tags, self._stop)
                with self._lock:
                    self._bytes += size
        except (Empty, Stopped):
            pass
        except Exception as error:
            self._failure = self._failure or error
            self._stop.set()
