"""Guarantee 12 on a file system that is really full, with the real engine and a real client."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent.parent
PROGRAM = Path(__file__).parent / "full_filesystem.py"
NAMESPACE = ["unshare", "--mount", "--map-root-user"]


def _refused(folder: Path) -> str | None:
    """Why this machine lets us make no file system, if it does not."""
    if shutil.which("unshare") is None:
        return "this system has no mount namespaces (no unshare command)"
    mount = [*NAMESPACE, "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    tried = subprocess.run(mount, capture_output=True, text=True, check=False)
    return f"the system refuses to mount: {tried.stderr.strip()}" if tried.returncode else None


def _train(home: Path, model: Path, *size: str) -> dict[str, Any]:
    home.mkdir()
    command = [sys.executable, str(PROGRAM), str(home), str(model), *size]
    path = f"{TESTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [*(NAMESPACE if size else []), *command],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        timeout=240,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_guarantee_12_a_file_system_that_is_really_full(tmp_path: Path, tiny_llama: Path) -> None:
    """Filled to the last byte while a run trains: a save without room fails with the reason, other
    requests are told to wait, health says why, and once there is room the run ends bit for bit as
    on a roomy one."""
    if reason := _refused(tmp_path):
        pytest.skip(reason)
    full = _train(tmp_path / "full", tiny_llama, "32")
    assert "No space left" in full.pop("save")
    for told in (full.pop("refusal"), full.pop("health")):
        assert told.startswith("503 ")
        assert "disk is full" in told
    assert full.pop("waited")
    assert full == _train(tmp_path / "roomy", tiny_llama)
