"""Fixtures of the command line's tests: a fixed terminal, and stored outputs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

OUTPUTS = Path(__file__).parent / "outputs"
REWRITE = "TINKEX_REGENERATE"


@pytest.fixture(autouse=True)
def plain_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No key, server, colour or home of the developer's machine reaches a test."""
    for name in list(os.environ):
        if name.startswith(("TINKER_", "TINKEX_")) and name != REWRITE:
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "110")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("NO_COLOR", "COLORTERM", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def matches_stored() -> Callable[[str, str], None]:
    """Compares an output to the stored one; TINKEX_REGENERATE=1 stores it instead."""

    def compare(name: str, text: str) -> None:
        path = OUTPUTS / f"{name}.txt"
        if os.environ.get(REWRITE):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(text.encode())
        assert path.exists(), f"{name} is not stored: run once with {REWRITE}=1"
        assert text == path.read_bytes().decode()

    return compare
