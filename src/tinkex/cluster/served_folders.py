"""Folders of the server, for engines away from it: listed, named by content, read in parts.

Only the model's folder and folders inside the home are served, no file of the home itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PART = 8 << 20
_EDGE = 1 << 20
"""Of a file's beginning and end that its content is known by, beside its size."""


class NotServed(Exception):
    """A folder that no engine may have, or that is gone."""


class ServedFolders:
    """Of one engine."""

    def __init__(self, model: str, home: str) -> None:
        self.model = model
        self._home = Path(home).resolve()

    def parts(self, path: str) -> Iterator[tuple[str, int, NDArray[np.uint8]]]:
        """Name, offset and bytes of all files' parts. Raises `NotServed`."""
        folder = self._checked(path)
        for file in _files(folder):
            name, size = file.relative_to(folder).as_posix(), file.stat().st_size
            with file.open("rb") as source:
                for offset in range(0, max(size, 1), PART):
                    yield name, offset, np.frombuffer(source.read(PART), np.uint8)

    def _checked(self, path: str) -> Path:
        folder = Path(path).resolve()
        inside = folder != self._home and folder.is_relative_to(self._home)
        if not folder.is_dir() or not (path == self.model or inside):
            raise NotServed(f"the server has no folder {path} for engines")
        return folder


def content_of(folder: Path) -> str:
    """A name for what is in a model's folder: its files' names, sizes, beginnings and ends."""
    digest = hashlib.sha256()
    for file in _files(folder):
        size = file.stat().st_size
        digest.update(f"{file.relative_to(folder)}:{size}\0".encode())
        with file.open("rb") as source:
            digest.update(source.read(_EDGE))
            source.seek(max(0, size - _EDGE))
            digest.update(source.read(_EDGE))
    return digest.hexdigest()[:24]


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
