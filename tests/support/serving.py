"""`tinkex serve` as a process, with what it prints."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

from support.server_process import MODEL

START_S = 120.0


class Serving:
    """A `tinkex serve`; `lines` is what it printed."""

    def __init__(self, home: Path, database: str, port: int) -> None:
        options = ["--home", str(home), "--port", str(port), "--model", MODEL, "--device", "cpu"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tinkex.cli", "serve", *options, "--dtype", "float32"],
            env={**os.environ, "OMP_NUM_THREADS": "2", "TINKEX_DATABASE": database},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.pid = self._process.pid
        self._printed: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._printed.put(line)
        self._process.stdout.close()

    def wait_for(self, words: str) -> str:
        """The first line with these words from now on."""
        deadline = time.monotonic() + START_S
        while words not in (line := self._printed.get(timeout=deadline - time.monotonic())):
            assert "Traceback" not in line
        return line

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def stop(self) -> int:
        self._process.terminate()
        status = self._process.wait(60)
        self._reader.join()
        return status
