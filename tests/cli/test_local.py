"""`--local` and `tinkex demo`: the embedded server, on a machine with nothing configured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.json_shape import mismatches, shapes
from support.live_server import live_server
from support.terminal import TerminalSession

pytestmark = pytest.mark.slow

MODEL = "tinkex/tiny-llama"


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    home = tmp_path_factory.mktemp("machine")
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "TERM": "xterm",
        "TINKEX_MODELS": MODEL,
        "OMP_NUM_THREADS": "2",
        "HF_HUB_OFFLINE": "1",
    }


def tinkex(environ: dict[str, str], *words: str) -> Any:
    line = [sys.executable, "-m", "tinkex", *words, "--json"]
    done = subprocess.run(line, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_sampling_works_with_nothing_configured(environ: dict[str, str]) -> None:
    flags = ("--local", "--prompt", "Hello", "--max-tokens", "3")
    found = tinkex(environ, "run", "sample", *flags)
    assert len(found["sequences"][0]["tokens"]) == 3


def test_what_earlier_commands_saved_is_still_there(
    environ: dict[str, str], tmp_path: Path
) -> None:
    line = ("checkpoint", "create", "--local", "--base-model", MODEL, "-o", str(tmp_path / "m"))
    path = tinkex(environ, *line)["weights_path"]
    listed = tinkex(environ, "checkpoint", "list", "--local")["checkpoints"]
    assert path in [item["tinker_path"] for item in listed]
    kept = tinkex(environ, "checkpoint", "download", path, "--local", "-o", str(tmp_path))
    names = {file.name for file in Path(kept["destination"]).iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= names


def test_a_running_server_is_used_instead_of_a_second_one(environ: dict[str, str]) -> None:
    home = Path(environ["HOME"])
    with live_server(home / ".tinkex", "--model", MODEL, cache=home / ".cache" / "tinkex"):
        listed = tinkex(environ, "checkpoint", "list", "--local")["checkpoints"]
        assert len(listed) == 1  # what the embedded server saved before
        flags = ("--local", "--prompt", "Hello", "--max-tokens", "3")
        assert tinkex(environ, "run", "sample", *flags)["type"] == "sample"


def test_the_demo_teaches_saves_and_downloads(environ: dict[str, str], tmp_path: Path) -> None:
    found = tinkex(environ, "demo", "--steps", "3", "-o", str(tmp_path / "out"))
    assert mismatches(found, shapes()["demo"]) == []
    assert found["model"] == MODEL
    assert found["last_loss"] < found["first_loss"]
    assert (Path(found["destination"]) / "adapter_model.safetensors").is_file()


def test_ctrl_c_in_the_demo_is_quiet(environ: dict[str, str], tmp_path: Path) -> None:
    line = [sys.executable, "-m", "tinkex", "demo", "--steps", "500", "-o", str(tmp_path / "out")]
    with TerminalSession(line, environ) as session:
        session.wait_for("Teaching  loss", 120)
        session.type("\x03")
        assert session.finish(60) == 130
    assert "Traceback" not in session.text
    assert not (tmp_path / "out").exists()


def test_ctrl_c_stops_an_answer_and_not_the_chat(environ: dict[str, str]) -> None:
    # The model says hundreds of words by this seed, and often ends after a few by another.
    drawn = ["--max-tokens", "3900", "--temperature", "2", "--seed", "133"]
    line = [sys.executable, "-m", "tinkex", "chat", MODEL, *drawn]
    with TerminalSession(line, environ, columns=80) as terminal:
        terminal.wait_for("> ", 120)
        terminal.type("hello\n")
        terminal.wait_for("hello\r\n")
        said = len(terminal.text)
        terminal._read_until(lambda: len(terminal.text) > said, 60)
        terminal.type("\x03")
        terminal.wait_for("(stopped)")
        terminal.type("/exit\n")
        assert terminal.finish() == 0
