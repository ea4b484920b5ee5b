"""Which tests run on one worker, one after the other: those of a file, or of a folder whose files
share one server."""

from __future__ import annotations

from pathlib import Path

_TESTS = Path(__file__).parents[1]
TOGETHER = frozenset({"endpoints"})
"""Folders with one server for all of their files. Making the endpoints' takes most of a minute: it
learns the answer that they all ask for."""


def group_of(path: Path) -> str:
    parts = path.relative_to(_TESTS).parts
    return parts[0] if parts[0] in TOGETHER else "/".join(parts)
