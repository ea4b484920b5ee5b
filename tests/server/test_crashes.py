"""Nothing accepted is lost or applied twice, whichever process dies; clients see only a pause."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support import official_sampler, official_trainer
from support.server_process import MODEL, ServerProcess

STEPS = 10


def _train(server: ServerProcess, disturb: Callable[[int], None]) -> tuple[list[float], str]:
    """Train with the official client; the losses and the hash of the final state."""
    script = [sys.executable, official_trainer.__file__, server.url, MODEL, str(STEPS)]
    with subprocess.Popen(
        script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdout is not None
        assert client.stdin is not None
        for line in client.stdout:
            if not line.startswith("step "):
                break
            disturb(int(line.split()[1]))
            client.stdin.write("\n")
            client.stdin.flush()
        losses = json.loads(line)
    return losses, server.weights_digest("final")


@pytest.mark.slow
def test_killing_engine_and_server_changes_no_number(tmp_path: Path, tiny_llama: Path) -> None:
    calm = ServerProcess(tmp_path / "calm", tiny_llama)
    calm.start()
    calm.wait_ready()
    expected = _train(calm, lambda step: None)
    calm.stop()
    server = ServerProcess(tmp_path / "stormy", tiny_llama, snapshot_steps=4)
    server.start()
    server.wait_ready()

    def disturb(step: int) -> None:
        if step == 3:
            server.kill_engine()
        if step in (6, 8):
            server.kill()
            server.start()

    try:
        assert _train(server, disturb) == expected
    finally:
        server.stop()


@pytest.mark.slow
def test_samples_lost_with_the_server_are_sent_again_by_the_official_client(
    tmp_path: Path, tiny_llama: Path
) -> None:
    server = ServerProcess(tmp_path / "home", tiny_llama)
    server.start()
    server.wait_ready()
    script = [sys.executable, official_sampler.__file__, server.url, MODEL, "24"]
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
            assert json.loads(client.stdout.readline()) == [600] * 24
    finally:
        server.stop()
