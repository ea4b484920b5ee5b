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
import urllib.request
from itertools import takewhile
from pathlib import Path

from report import Row, write

from tinkex.server.engines.model_sources import DEFAULT_MODEL, default_cache, resolve

STARTS = 5
TARGETS = {"tinkex/tiny-llama": "≤5 s", DEFAULT_MODEL: "≤15 s"}


def main() -> None:
    rows = []
    for model, target in TARGETS.items():
        resolve(model, default_cache(os.environ), os.environ)
        seconds = [start(model) for _ in range(STARTS)]
        rows.append(
            Row(f"{model}, from start to ready", statistics.median(seconds), "s", target=target)
        )
    write("server_ready", "Time until `tinkex serve` is ready", rows)


def start(model: str) -> float:
    """Seconds until the server says that the model can serve, and its health route agrees."""
    with tempfile.TemporaryDirectory() as home:
        options = ["--model", model, "--port", "0", "--home", str(Path(home) / "home")]
        begun = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "tinkex", "serve", *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        try:
            printed = list(takewhile(lambda line: "ready" not in line, process.stdout))
            seconds = time.perf_counter() - begun
            with urllib.request.urlopen(f"{printed[0].split()[-1]}/api/v1/healthz") as answer:
                assert answer.status == 200
            return seconds
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


if __name__ == "__main__":
    main()
