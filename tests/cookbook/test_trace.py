"""The cookbook's traces cover our clients whole."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tinker_cookbook")


def test_the_cookbook_traces_every_coroutine_of_our_clients() -> None:
    line = [sys.executable, "-m", "tinkex.alias", str(Path(__file__).parent / "traced.py")]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(done.stdout) == {"sdk": "tinkex", "missed": []}
