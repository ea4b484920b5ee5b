"""Folders read by operations that may be repeated: hard links that outlive what they link to.

A pin belongs to one operation, has its name, and is dropped when a snapshot covers that operation.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from tinkex.engine.messages import WeightsRef
from tinkex.server.storage.folders import sync_folder

_TEMPORARY = "tmp-"


class PinStore(Protocol):
    """Folders kept for operations, by request id. `drop` and `keep_only` block."""

    async def find(self, request_id: str) -> WeightsRef | None:
        """What an operation reads, if it was pinned before."""

    async def pin(self, request_id: str, folder: str, path: Path) -> WeightsRef:
        """Keep the folder of that name, which lies at `path`, for an operation."""

    def folders(self) -> set[str]:
        """Names of folders that must not be deleted where they are."""

    def drop(self, request_id: str) -> None: ...

    def keep_only(self, request_ids: Iterable[str]) -> None: ...


class Pins:
    """The pins of one home. `drop` and `keep_only` block on the disk."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)
        for leftover in root.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(leftover)

    async def find(self, request_id: str) -> WeightsRef | None:
        """What an operation reads, if it was pinned before."""
        folder = self._root / pin_name(request_id)
        return WeightsRef(str(folder)) if folder.is_dir() else None

    async def pin(self, request_id: str, _: str, path: Path) -> WeightsRef:
        """Link a folder's files under the operation's own name."""
        return WeightsRef(str(await asyncio.to_thread(self._pin, request_id, path)))

    def folders(self) -> set[str]:
        """None: links outlive what they link."""
        return set()

    def _pin(self, request_id: str, source: Path) -> Path:
        folder = self._root / pin_name(request_id)
        temporary = self._root / f"{_TEMPORARY}{folder.name}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        for path in source.iterdir():
            _link(path, temporary / path.name)
        sync_folder(temporary)
        temporary.rename(folder)
        sync_folder(self._root)
        return folder

    def drop(self, request_id: str) -> None:
        shutil.rmtree(self._root / pin_name(request_id), ignore_errors=True)

    def keep_only(self, request_ids: Iterable[str]) -> None:
        """Drop every pin but those of the given operations."""
        wanted = {pin_name(request_id) for request_id in request_ids}
        for folder in self._root.iterdir():
            if folder.name not in wanted:
                shutil.rmtree(folder)


def pin_name(request_id: str) -> str:
    """What the pin of an operation is called."""
    return hashlib.sha256(request_id.encode()).hexdigest()[:32]


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # some file systems know no hard links
        shutil.copyfile(source, target)
