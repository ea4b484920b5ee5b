"""The official command line works against our server: what it prints comes from our routes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from compat.official_commands import PROMISES
from support.ending import ended_well
from support.live_server import live_server

MODEL = "tinkex/tiny-llama"
SCRIPT = Path(__file__).parent / "official_commands.py"
LIMIT_S = 200

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    folder = tmp_path_factory.mktemp("official-cli")
    with live_server(folder / "home", "--model", MODEL) as server:
        command = [sys.executable, str(SCRIPT), server.url, MODEL, str(folder / "report.json")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ended_well(done.returncode, official=True), done.stderr[-6000:]
    found: dict[str, str | None] = json.loads((folder / "report.json").read_text())
    return found


@pytest.mark.parametrize("promise", [promise.__name__ for promise in PROMISES])
def test_the_official_command_line(report: dict[str, str | None], promise: str) -> None:
    assert report[promise] is None, report[promise]
