"""A real server for tests: `tinkex serve` in a process of its own, on a free port."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

START_S = 300
STOP_S = 60
_ADDRESS = re.compile(r"http://[\w.:\[\]]+")


class LiveServer:
    """A running server. `url` answers; `output` is everything it printed so far."""

    def __init__(self, process: subprocess.Popen[str], home: Path) -> None:
        self.process, self.home = process, home
        self.lines: list[str] = []
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.url = self._address()

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def stop(self, number: int = signal.SIGINT) -> int:
        """End it with a signal; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        status = self.process.wait(STOP_S)
        self._reader.join(STOP_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return status

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if "ready" in line:
                self._ready.set()
        self._ready.set()

    def _address(self) -> str:
        if not self._ready.wait(START_S) or self.process.poll() is not None:
            self.process.kill()
            self.wait()
            raise AssertionError(f"the server did not start:\n{self.output}")
        found = _ADDRESS.search(self.output)
        assert found, self.output
        return found.group()


@contextmanager
def live_server(home: Path, *arguments: str, cache: Path | None = None) -> Iterator[LiveServer]:
    """Serve until the block ends. `arguments` go to `tinkex serve`."""
    server = LiveServer(start(home, arguments, cache), home)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()


def start(home: Path, arguments: Sequence[str], cache: Path | None = None) -> subprocess.Popen[str]:
    environ = {**os.environ, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"}
    if cache is not None:
        environ["TINKEX_CACHE"] = str(cache)
    command = [sys.executable, "-m", "tinkex", "serve", "--home", str(home), "--port", "0"]
    return subprocess.Popen(
        [*command, *arguments],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
