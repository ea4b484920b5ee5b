"""Runs `tinkex serve` as a child process, for the examples that need a real server to talk to or
to kill. Knows the command line and the health route, nothing of what is served."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0


class Server:
    """A `tinkex serve` on a fixed port and home, so that it can die and come back."""

    def __init__(self, home: Path, models: Sequence[str], flags: Sequence[str] = ()) -> None:
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self._log = home / "serve.log"
        self._command = [sys.executable, "-m", "tinkex", "serve", "--port", str(self.port)]
        self._command += ["--home", str(home), *flags]
        for model in models:
            self._command += ["--model", model]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return when the health route answers: a model can serve then."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self._healthy():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"tinkex serve did not start:\n{self._log.read_text()[-2000:]}")
            time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL: no warning, no clean-up, as when a machine loses power."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/api/v1/healthz", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


@contextmanager
def served(models: Sequence[str], flags: Sequence[str] = ()) -> Iterator[Server]:
    """A ready server in a temporary home, stopped and forgotten at the end."""
    with tempfile.TemporaryDirectory(prefix="tinkex-example-") as home:
        server = Server(Path(home), models, flags)
        try:
            server.start()
            yield server
        finally:
            server.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
