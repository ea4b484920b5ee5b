"""Folders of weights on disk that are either wholly there or not there at all.

A folder is begun under a temporary name, filled by someone else, synced, renamed, and its parent
synced; what lies under a temporary name after a crash was never promised to anyone and is swept at
the next start. Knows nothing of what the files mean.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import mmap
import os
import secrets
import shutil
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TypeAlias

from tinkex.engine.messages import SaveResult, WeightsRef
from tinkex.server.storage import manifest

_TEMPORARY = "tmp-"

_PIECE = 16 << 20
"""Bytes of a file that are synced at once: about 10 ms of a fast disk."""

Pack: TypeAlias = Callable[[Path], Iterable[bytes]]
"""Makes one stream of a folder."""


class Folders:
    """Immutable folders of weights under one root: begun empty, filled by another, then sealed. An
    unsealed folder has a temporary name and is deleted at the next start."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)
        for leftover in root.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(leftover)

    def begin(self, name: str | None = None) -> Path:
        """A new empty folder for someone to write into; `name` is what `seal` will call it."""
        folder = self._root / f"{_TEMPORARY}{name or secrets.token_hex(16)}"
        folder.mkdir()
        return folder

    @staticmethod
    def final_name(draft: Path) -> str:
        """What `seal` will call it."""
        return draft.name.removeprefix(_TEMPORARY)

    def seal(self, folder: Path) -> str:
        """Make what was written durable and give it its final name. A folder that has it already
        stays: it was sealed by an earlier attempt at the same thing."""
        name = self.final_name(folder)
        if (self._root / name).is_dir():
            self.abandon(folder)
            return name
        for path in sorted(folder.rglob("*")):
            _sync(path)
        _sync(folder)
        folder.rename(self._root / name)
        sync_folder(self._root)
        return name

    def abandon(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)

    def path(self, name: str) -> Path:
        return self._root / name

    def has(self, name: str) -> bool:
        """Whether the sealed folder exists."""
        return self.path(name).is_dir()

    def is_here(self, _: str) -> bool:
        """Whether an existing folder is on this disk."""
        return True

    async def files(self, name: str, digest: str | None = None) -> manifest.Manifest:
        """The files of a sealed folder; refused unless it matches `digest`, if given."""
        return await asyncio.to_thread(manifest.read, self.path(name), digest)

    async def check(self, name: str, digest: str | None = None) -> None:
        """Refuse a sealed folder that has changed: `CorruptCheckpoint`."""
        await asyncio.to_thread(manifest.verify, self.path(name), digest)

    def using(self, _: str) -> AbstractContextManager[None]:
        """Keep a folder on this disk for the length of a `with`; here it always is."""
        return nullcontext()

    async def here(self, name: str) -> Path:
        """A sealed folder on this disk. A missing one raises when it is read."""
        return self.path(name)

    def link(self, _name: str, _file: str, _seconds: float) -> str | None:
        """An address to fetch a file without this server; None here."""
        return None

    async def digest(self, name: str) -> str:
        """What names the content of a sealed folder."""
        return await asyncio.to_thread(manifest.digest_of, self.path(name))

    async def archive_link(self, _name: str, _pack: Pack, _seconds: float) -> str | None:
        """The same for the whole folder, packed into one object."""
        return None

    async def reference(self, name: str, digest: str = "") -> WeightsRef:
        """A sealed folder as engines are given it."""
        return WeightsRef(str(self.path(name)), digest)

    async def linked(self, _name: str) -> WeightsRef | None:
        """The same for an engine elsewhere that can fetch it without this server; None here."""
        return None

    def delete(self, name: str) -> None:
        shutil.rmtree(self._root / name, ignore_errors=True)

    def size(self, name: str) -> int:
        """The bytes of a sealed folder's files; 0 if it is gone."""
        try:
            return sum(path.stat().st_size for path in (self._root / name).iterdir())
        except FileNotFoundError:
            return 0

    def names(self, made_before: float = math.inf) -> set[str]:
        """The sealed folders, or those of them last written before an instant."""
        return {
            entry.name
            for entry in self._root.iterdir()
            if not entry.name.startswith(_TEMPORARY) and entry.stat().st_mtime < made_before
        }


def fill(draft: Path, result: SaveResult) -> None:
    """Write into a draft what an engine on another host sent of it. Blocks on the disk."""
    for name, content in result.files.items():
        (draft / Path(name).name).write_bytes(content.data)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    _sync(folder)


def _sync(path: Path) -> None:
    if path.is_file() and path.stat().st_size > _PIECE:
        _sync_pieces(path)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_pieces(path: Path) -> None:
    """Sync a large file piece by piece. While all of it is being synced at once, a file system
    delays others that sync there: the database, and so everybody's steps."""
    with contextlib.ExitStack() as undo:
        try:
            file = undo.enter_context(path.open("r+b"))
            mapped = undo.enter_context(mmap.mmap(file.fileno(), 0))
        except OSError:
            return  # a file system without shared maps: what follows syncs all of it at once
        for start in range(0, len(mapped), _PIECE):
            mapped.flush(start, min(_PIECE, len(mapped) - start))
