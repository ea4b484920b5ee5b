"""What prints at once does not load what it does not need."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("click", "rich", "numpy", "pydantic", "google.protobuf", "pyqwest", "torch", "tokenizers")
_SHOW_MODULES = """
import io, json, sys
from tinkex.cli.main import run
code = run(sys.argv[1:], stdout=io.StringIO(), stderr=io.StringIO()).exit_code
print(json.dumps([code, sorted(sys.modules)]))
"""


def modules_after(*argv: str) -> tuple[int, set[str]]:
    done = subprocess.run(
        [sys.executable, "-c", _SHOW_MODULES, *argv], capture_output=True, text=True, check=True
    )
    code, names = json.loads(done.stdout)
    return code, set(names)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["--help"], 0),
        (["checkpoint", "-h"], 0),
        (["version"], 0),
        (["version", "--deps", "--json"], 0),
        (["--version"], 0),
        (["chekpoint"], 2),
        (["run", "nothing"], 2),
        ([], 2),
        (["__complete", "che"], 0),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_quick_answers_load_no_library(line: list[str], expected: int) -> None:
    code, names = modules_after(*line)
    assert code == expected
    assert [name for name in HEAVY if name in names] == []
    assert not any(name.startswith("tinkex.cli.commands") for name in names)


@pytest.mark.parametrize("module", ["tinkex", "tinkex.cli"])
def test_the_command_runs_as_a_module(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "version"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith("tinkex ")
