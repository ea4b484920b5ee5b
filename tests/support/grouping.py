"""Which tests run on one worker, one after the other: those of a file, or of a folder whose files
share one server."""

from __future__ import annotations

TOGETHER = frozenset({"endpoints"})
"""Folders with one server for all of their files. Making the endpoints' takes most of a minute: it
learns the answer that they all ask for."""


def group_of(path: str) -> str:
    """Of a file, given as pytest names it: `tests/folder/test_file.py`."""
    folder = path.removeprefix("tests/").partition("/")[0]
    return folder if folder in TOGETHER else path
