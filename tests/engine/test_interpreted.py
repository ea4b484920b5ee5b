"""Without a GPU, every kernel is run under Triton's interpreter: the tests of all of them in one
process, because starting one takes as long as most of them do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.interpreted import elsewhere

FOLDER = Path(__file__).parent
FILES = [
    str(path) for path in sorted(FOLDER.rglob("*.py")) if "\n@here\n" in path.read_text("utf-8")
]


@elsewhere
def test_kernels_are_right_under_tritons_interpreter() -> None:
    assert len(FILES) > 8
    plugins = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, *FILES]
    environ = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
