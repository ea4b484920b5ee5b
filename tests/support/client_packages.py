"""Packages whose needs do not agree with ours, in an environment of their own: `make clients`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

APART = ("litellm", "lm_eval", "inspect_ai")
_PYTHON = Path(__file__).resolve().parents[2] / ".venv-clients" / "bin" / "python"


def python_for(sources: Iterable[str]) -> str:
    """The Python that has what these sources import; without it, a test is skipped by name."""
    wanted = rf"^(?:import|from) (?:{'|'.join(APART)})\b"
    if not any(re.search(wanted, source, re.MULTILINE) for source in sources):
        return sys.executable
    return clients_python()


def clients_python() -> str:
    found = Path(os.environ.get("TINKEX_CLIENTS_PYTHON", _PYTHON))
    if not found.is_file():
        pytest.skip(f"{', '.join(APART)} are not installed: make clients")
    return str(found)
