"""Triton kernels in tests: in this process on a GPU; without one under Triton's interpreter, in a
process of its own, because whether kernels are interpreted is settled when they are defined."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
RUNS = torch.cuda.is_available() or INTERPRETED
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

here = pytest.mark.skipif(not RUNS, reason="needs a GPU; interpreted by one test of this file")
"""A test of a kernel."""


elsewhere = pytest.mark.skipif(
    RUNS or importlib.util.find_spec("triton") is None,
    reason="the kernels run in this process" if RUNS else "needs triton",
)
"""The test of a file that has the others of it interpreted."""


def run_interpreted(file: str) -> None:
    plugins = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, file]
    environ = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
