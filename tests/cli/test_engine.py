"""`tinkex engine`: two engines are looked at, drained and restarted while they train."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tinkex
from support.command_line import CommandLine
from support.guarantee_data import batch
from support.json_shape import mismatches, shapes
from support.live_server import live_server

MODEL = "tinkex/tiny-llama"


def engines(root: Path, word: str, *names: str) -> dict[str, Any]:
    """Every engine by its name, after a command."""
    line = [sys.executable, "-m", "tinkex", "engine", word, *names, "--home", str(root), "--json"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert mismatches(found, shapes()[f"engine {word}"]) == []
    return {each["engine"]: each for each in found["engines"]}


def test_a_home_without_a_server_has_no_engines(tmp_path: Path) -> None:
    ran = CommandLine()("engine", "list", "--home", str(tmp_path / "none"))
    assert ran.code == 1
    assert "no home of a server yet" in ran.err


@pytest.mark.slow
def test_two_engines_are_started_told_of_drained_and_restarted_and_no_run_notices(
    tmp_path: Path,
) -> None:
    root = tmp_path / "home"
    options = ("--model", MODEL, "--device", "cpu", "--engines", "2")
    with live_server(root, *options) as server:
        first, second = f"{MODEL}#0", f"{MODEL}#1"
        assert first in server.output
        assert second in server.output
        with tinkex.ServiceClient(base_url=server.url, api_key="tml-x") as service:
            clients = [service.create_lora_training_client(MODEL, rank=4) for _ in range(2)]
            data = batch(0, 2, tinkex)
            losses = [_loss(client, data) for client in clients]
            assert {name: each["runs"] for name, each in engines(root, "list").items()} == {
                first: 1,
                second: 1,
            }
            drained = engines(root, "drain", first)
            assert (drained[first]["state"], drained[first]["runs"]) == ("drained", 0)
            assert [_loss(client, data) for client in clients] == losses
            assert engines(root, "list")[second]["runs"] == 2
            wrong = CommandLine()("engine", "drain", f"{MODEL}#7", "--home", str(root))
            assert wrong.code == 1
            assert f"Error: no engine '{MODEL}#7' here; there are: {first}, {second}" in wrong.err
            engines(root, "resume", first)
            restarted = engines(root, "restart")
            assert [each["life"] for each in restarted.values()] == [2, 2]
            assert [each["deaths"] for each in restarted.values()] == [0, 0]
            assert [_loss(client, data) for client in clients] == losses


def _loss(client: Any, data: Any) -> float:
    result = client.forward(data, "cross_entropy").result()
    return float(result.metrics["loss:sum"])
