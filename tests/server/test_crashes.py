"""Samples are not logged: those a server dies with are asked for again, and clients see a pause.

What is logged, and outlasts any death, is guarantee 10: `tests/guarantees/test_kills.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support import official_sampler
from support.server_process import MODEL, ServerProcess


@pytest.mark.slow
def test_samples_lost_with_the_server_are_sent_again_by_the_official_client(
    tmp_path: Path, tiny_llama: Path
) -> None:
    server = ServerProcess(tmp_path / "home", tiny_llama)
    server.start()
    server.wait_ready()
    script = [sys.executable, official_sampler.__file__, server.url, MODEL, "12"]
    try:
        with subprocess.Popen(
            script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as client:
            assert client.stdout is not None
            assert client.stdin is not None
            assert client.stdout.readline() == "submitted\n"
            server.kill()
            server.start()
            client.stdin.write("\n")
            client.stdin.flush()
            assert json.loads(client.stdout.readline()) == [600] * 12
    finally:
        server.stop()
