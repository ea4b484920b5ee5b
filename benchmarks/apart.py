"""A client benchmark's other processes: the server it talks to, and each SDK for itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def server_of(script: str) -> Iterator[str]:
    """The address of a server that `script --serve` prints; it ends with its standard input."""
    server = subprocess.Popen(
        [sys.executable, script, "--serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    try:
        yield server.stdout.readline().strip()
    finally:
        server.communicate("")


def client_of(script: str, sdk: str, *words: str) -> dict[str, float]:
    """What `script --client SDK WORDS…` prints last, with none of the shell's settings."""
    done = subprocess.run(
        [sys.executable, script, "--client", sdk, *words],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={k: v for k, v in os.environ.items() if not k.startswith(("TINKER_", "TINKEX_"))},
    )
    if done.returncode != 0:
        raise SystemExit(f"{sdk} failed:\n{done.stderr[-2000:]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result
