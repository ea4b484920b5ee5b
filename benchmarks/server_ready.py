"""How long from typing `tinkex serve` until a model can serve, imports included.

    python benchmarks/server_ready.py

The model files are made once before the clock starts, as they are for a user from the second start
on. Each figure is the median of several starts with a fresh home.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from report import Row, write

from tinkex.server.models import DEFAULT_MODEL, default_cache, resolve

STARTS = 5
LIMIT_S = 120.0
PORT = 8765
BARS = {"tinkex/tiny-llama": "≤5 s", DEFAULT_MODEL: "≤15 s"}


def main() -> None:
    rows = []
    for model, bar in BARS.items():
        resolve(model, default_cache(os.environ), os.environ)
        seconds = [start(model) for _ in range(STARTS)]
        rows.append(Row(f"{model}, from start to ready", statistics.median(seconds), "s", bar=bar))
    write("server_ready", "Time until `tinkex serve` is ready", rows)


def start(model: str) -> float:
    """Seconds until the health route says ok."""
    with tempfile.TemporaryDirectory() as home:
        begun = time.perf_counter()
        options = ["--model", model, "--port", str(PORT), "--home", str(Path(home) / "home")]
        process = subprocess.Popen(
            [sys.executable, "-m", "tinkex", "serve", *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while not healthy():
                if process.poll() is not None or time.perf_counter() - begun > LIMIT_S:
                    raise SystemExit(f"the server did not become ready (exit {process.poll()})")
                time.sleep(0.01)
            return time.perf_counter() - begun
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def healthy() -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/api/v1/healthz", timeout=1) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    main()
