"""The tutorial of the command line does what it says: its blocks are run in order, as typed.

Only the model is replaced by a tiny one, and the id that the page shows by that of the run made.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.documents import DOCS, blocks

PAGE = DOCS / "guides" / "command-line.md"
SHOWN_MODEL, TEST_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct", "tinkex/tiny-llama"
SHOWN_RUN = "1f3a90cc"


class Reader:
    """Someone with nothing configured who types the page line by line."""

    def __init__(self, folder: Path) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("TINKER_", "TINKEX_"))}
        ours = {"HOME": str(folder), "TINKEX_MODELS": TEST_MODEL, "OMP_NUM_THREADS": "2"}
        self.folder, self.environ = folder, {**kept, **ours}

    def type(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
        return done.stdout

    def tinkex(self, line: str) -> str:
        assert line.startswith("tinkex "), line
        return self.type("-m", *shlex.split(line, comments=True))

    def newest_run(self) -> str:
        listed = json.loads(self.tinkex("tinkex run list --local --json"))
        return str(listed["runs"][0]["training_run_id"])


@pytest.mark.slow
def test_the_tutorial_of_the_command_line_runs_from_top_to_bottom(tmp_path: Path) -> None:
    reader, said = Reader(tmp_path), ""
    for block in blocks(PAGE):
        if block.language == "python":
            reader.type("-c", block.code.replace(SHOWN_MODEL, TEST_MODEL))
            made = reader.newest_run()
            continue
        for line in block.code.splitlines():
            said += reader.tinkex(line.replace(SHOWN_RUN, made[:8]))
    assert "first try, rate 1e-3" in said
    assert (tmp_path / "branch.json").is_file()
    assert list((tmp_path / "adapters").glob("*/adapter_model.safetensors"))
    assert made not in reader.tinkex("tinkex run list --local --json"), "it was deleted at the end"
