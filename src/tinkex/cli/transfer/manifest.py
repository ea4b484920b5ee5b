"""Checks downloaded files against the manifest that lies among them, if there is one."""

from __future__ import annotations

import json
from pathlib import Path

from tinkex.cli.errors import CliError
from tinkex.cli.transfer.names import is_safe_name
from tinkex.cli.transfer.parts import sha256_of

_NAME = "manifest.json"


def check_manifest(folder: Path) -> None:
    """Raises `CliError` when a file is missing or is not what was saved."""
    for name, size, digest in _entries(folder / _NAME):
        path = folder / name
        if not path.is_file() or path.stat().st_size != size or sha256_of(path) != digest:
            raise CliError(
                f"{name} is not the file that was saved: its size or SHA-256 differs",
                next_step="Nothing was kept. Run the same command again.",
            )


def _entries(path: Path) -> list[tuple[str, int, str]]:
    """What a manifest of ours lists; any other file of that name lists nothing."""
    try:
        files = json.loads(path.read_text(encoding="utf-8"))["files"]
        return [
            (name, int(entry["size"]), str(entry["sha256"]))
            for name, entry in files.items()
            if is_safe_name(name)
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
