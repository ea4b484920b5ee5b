"""`tinkex home`: what takes room, and letting go of it, beside a server and without one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tinkex
from support.command_line import CommandLine
from support.json_shape import mismatches, shapes
from support.live_server import live_server

MODEL = "tinkex/tiny-llama"


def home(root: Path, *words: str) -> Any:
    line = [sys.executable, "-m", "tinkex", "home", *words, "--home", str(root), "--json"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert mismatches(found, shapes()[f"home {words[0]}"]) == []
    return found


@pytest.mark.parametrize("words", [["du"], ["gc"], ["migrate", "--objects", "s3://b/p"]])
def test_looking_at_a_home_that_is_none_makes_none(tmp_path: Path, words: list[str]) -> None:
    ran = CommandLine()("home", *words, "--home", str(tmp_path / "none"))
    assert ran.code == 1
    assert "no home of a server yet" in ran.err
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_du_tells_what_is_for_what_and_gc_takes_only_nameless_samplers(tmp_path: Path) -> None:
    root = tmp_path / "home"
    with live_server(root, "--model", MODEL) as server:
        with tinkex.ServiceClient(base_url=server.url, api_key="tml-x") as service:
            training = service.create_lora_training_client(MODEL, rank=4)
            training.save_state("kept").result()
            for _ in range(6):
                training.save_weights_and_get_sampling_client()
        found = {part["kind"]: part for part in home(root, "du")["parts"]}
        assert found["checkpoints"]["count"] == 1
        assert found["samplers"]["count"] == 6
        assert found["samplers"]["size_bytes"] > 0
        assert home(root, "gc") == {"samplers": 0, "size_bytes": 0, "dry_run": False}
    _age(root, 3600)
    would = home(root, "gc", "--dry-run")
    assert would["samplers"] == 6
    assert home(root, "du")["parts"][1]["count"] == 6
    assert home(root, "gc")["size_bytes"] == would["size_bytes"]
    after = {part["kind"]: part["count"] for part in home(root, "du")["parts"]}
    assert (after["samplers"], after["checkpoints"]) == (0, 1)


def _age(root: Path, seconds: int) -> None:
    """Let a home be older than it is."""
    import sqlite3

    with sqlite3.connect(root / "tinkex.db") as db:
        db.execute("UPDATE samplers SET created_at = created_at - ?", (seconds,))
