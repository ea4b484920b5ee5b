"""Which file names from a server may be written below a folder: relative, plain, and inside it."""

from __future__ import annotations

from pathlib import PurePosixPath, PureWindowsPath

_MOST_CHARACTERS = 1024


def is_safe_name(name: str) -> bool:
    """Whether `name` names a file strictly below the folder it is joined to, on any system."""
    path = PurePosixPath(name)
    if not name or len(name) > _MOST_CHARACTERS or not name.isprintable() or name.endswith("/"):
        return False
    if path.is_absolute() or ".." in path.parts or not path.parts:
        return False
    return "\\" not in name and not PureWindowsPath(name).drive
