"""A server with a tiny model in a process of its own, on a port that survives its death."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

START_S = 90.0
MODEL = "tinkex/tiny-llama"

_PROGRAM = """
import json
import sys
from pathlib import Path
import uvicorn
from tinkex.server.app import create_app
from tinkex.server.settings import ModelSpec, Scheduling, Settings, Timings

home, port, model, steps, timings, engines = sys.argv[1:]
settings = Settings(
    home=Path(home),
    models=(ModelSpec("tinkex/tiny-llama", model, model),),
    port=int(port),
    dtype="float32",
    device="cpu",
    engines=int(engines),
    timings=Timings(**{"drain_s": 5.0, **json.loads(timings)}),
    scheduling=Scheduling(snapshot_steps=int(steps)),
)
options = {"log_level": "warning", "timeout_graceful_shutdown": 2}
uvicorn.run(create_app(settings), host="127.0.0.1", port=int(port), **options)
"""


class ServerProcess:
    """Starts, kills and starts again the server of one home."""

    def __init__(
        self,
        home: Path,
        model: Path,
        snapshot_steps: int = 5,
        timings: Mapping[str, Any] | None = None,
        engines: int = 1,
    ) -> None:
        self.home = home
        self.port = free_port()
        self._arguments = [str(home), str(self.port), str(model), str(snapshot_steps)]
        self._arguments += [json.dumps(dict(timings or {})), str(engines)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        environ = {**os.environ, "OMP_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "false"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *self._arguments], env=environ
        )

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{self.url}/api/v1/healthz", timeout=30):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        raise AssertionError("the server did not become ready")

    def kill(self) -> None:
        """End the server as a power cut would; its engine ends with it."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def kill_engine(self) -> None:
        for pid in self._children():
            os.kill(pid, signal.SIGKILL)

    def kill_one_engine(self, dice: random.Random) -> None:
        """Any of several; a life that has just ended is as good as killed."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(dice.choice(self._children()), signal.SIGKILL)

    def restart_engines(self) -> None:
        """As an operator would: one after another, drained first."""
        command = [sys.executable, "-m", "tinkex", "engine", "restart", "--home", str(self.home)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=START_S)

    def stop(self) -> int:
        """End the server politely; its exit status."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(60)

    def end(self) -> None:
        """Leave nothing running, whatever happened before."""
        if self._process is not None and self._process.poll() is None:
            self.stop()

    def weights_digest(self, name: str) -> str:
        """The hash of a saved checkpoint's tensors, read from the home."""
        import sqlite3

        database = sqlite3.connect(self.home / "tinkex.db")
        try:
            (folder,) = database.execute(
                "SELECT folder FROM checkpoints WHERE name = ?", (name,)
            ).fetchone()
        finally:
            database.close()
        digest = hashlib.sha256()
        for path in sorted((self.home / "weights" / folder).glob("*.safetensors")):
            digest.update(path.name.encode() + path.read_bytes())
        return digest.hexdigest()

    def _children(self) -> list[int]:
        assert self._process is not None
        path = Path(f"/proc/{self._process.pid}/task")
        found: list[int] = []
        for task in path.iterdir():
            found += [int(pid) for pid in (task / "children").read_text().split()]
        return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
