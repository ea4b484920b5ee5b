"""Triton kernels in tests: on a GPU, or under Triton's interpreter where the environment says so.

Whether kernels are interpreted is settled when they are defined, so `test_interpreted.py` has that
done in a process of its own.
"""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
RUNS = torch.cuda.is_available() or INTERPRETED
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

here = pytest.mark.skipif(not RUNS, reason="needs a GPU; interpreted by test_interpreted.py")
"""A test of a kernel."""

elsewhere = pytest.mark.skipif(
    RUNS or importlib.util.find_spec("triton") is None,
    reason="the kernels run in this process" if RUNS else "needs triton",
)
"""A test that goes without kernels of its own."""
