"""Bytes and folders on disk that are either wholly there or not there at all.

A blob is written under a temporary name, synced, renamed, and its folder synced; what lies under a
temporary name after a crash was never promised to anyone and is swept at the next start.
Knows nothing of what the bytes mean.
"""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path
from typing import Protocol

_TEMPORARY = "tmp-"


class BlobStore(Protocol):
    """Named immutable bytes. Names come from `new_name`; deleting what is gone is no error."""

    def put(self, name: str, data: bytes) -> None: ...

    def get(self, name: str) -> bytes: ...

    def delete(self, name: str) -> None: ...

    def names(self) -> set[str]: ...


class FolderBlobs:
    """A `BlobStore` in one directory. All calls block on the disk: keep them off event loops."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)
        for leftover in root.glob(f"{_TEMPORARY}*"):
            leftover.unlink()

    def put(self, name: str, data: bytes) -> None:
        temporary = self._root / f"{_TEMPORARY}{name}"
        try:
            _write_synced(temporary, data)
            temporary.rename(self._root / name)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(self._root)

    def get(self, name: str) -> bytes:
        return (self._root / name).read_bytes()

    def delete(self, name: str) -> None:
        (self._root / name).unlink(missing_ok=True)

    def names(self) -> set[str]:
        return {
            entry.name for entry in self._root.iterdir() if not entry.name.startswith(_TEMPORARY)
        }


class Folders:
    """Immutable folders of weights under one root: begun empty, filled by another, then sealed.

    An unsealed folder lies under a temporary name and is swept at the next start.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)
        for leftover in root.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(leftover)

    def begin(self) -> Path:
        """A new empty folder for someone to write into."""
        folder = self._root / f"{_TEMPORARY}{secrets.token_hex(16)}"
        folder.mkdir()
        return folder

    def seal(self, folder: Path) -> str:
        """Make what was written durable and give it its final name."""
        for path in sorted(folder.rglob("*")):
            _sync(path)
        _sync(folder)
        name = folder.name.removeprefix(_TEMPORARY)
        folder.rename(self._root / name)
        sync_folder(self._root)
        return name

    def abandon(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)

    def link(self, source: Path) -> str:
        """A second name for a sealed folder's files, whatever happens to the first."""
        folder = self.begin()
        for path in source.iterdir():
            os.link(path, folder / path.name)
        return self.seal(folder)

    def path(self, name: str) -> Path:
        return self._root / name

    def delete(self, name: str) -> None:
        shutil.rmtree(self._root / name, ignore_errors=True)

    def names(self) -> set[str]:
        return {
            entry.name for entry in self._root.iterdir() if not entry.name.startswith(_TEMPORARY)
        }


def new_name() -> str:
    """A name no blob has."""
    return secrets.token_hex(16)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    _sync(folder)


def _write_synced(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
