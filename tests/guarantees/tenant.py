"""A client that trains in a process of its own, whatever happens to its server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from support.ending import ended_well
from support.server_process import ServerProcess

SDKS = ("tinker", "tinkex")
TRAINER = Path(__file__).parent / "trainer.py"
Numbers = tuple[list[float], str]
"""Every loss of a training script, and the hash of its final weights."""


class Tenant:
    """One client in a process of its own; `steps` counts what it finished."""

    def __init__(self, sdk: str, url: str, steps: int) -> None:
        path = str(Path(__file__).parents[1])
        self.steps, self.last = 0, ""
        self._official = sdk == "tinker"
        self._process = subprocess.Popen(
            [sys.executable, str(TRAINER), sdk, url, str(steps)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "TINKER_TELEMETRY": "0"},
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.last = line
            self.steps += line.startswith("step ")
        self._process.stdout.close()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """Leave nothing running, whatever happened before."""
        if self.running:
            self._process.kill()
            self._process.wait()
        self._reader.join()

    def losses(self) -> list[float]:
        status = self._process.wait(600)
        assert ended_well(status, official=self._official), "the client raised"
        self._reader.join()
        found: list[float] = json.loads(self.last)
        return found


def undisturbed(server: ServerProcess, steps: int) -> Numbers:
    """What a tenant gets of a server that it has for itself: with either SDK, and whoever else is
    there, the numbers must be these."""
    server.start()
    try:
        server.wait_ready()
        tenant = Tenant("tinkex", server.url, steps)
        try:
            return tenant.losses(), server.weights_digest("final-tinkex")
        finally:
            tenant.end()
    finally:
        server.end()
