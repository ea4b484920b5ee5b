"""Moves a home's files into an object store: resumable, verified by hashes.

Until everything is there and was read back, the home uses its files. Only then is the store
recorded as its own. Weights and snapshots stay on the disk as the store's cache.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from tinkex.server.storage import manifest
from tinkex.server.storage.blobs import SegmentBlobs
from tinkex.server.storage.database import operations as operations_table
from tinkex.server.storage.database.sqlite import only_reading
from tinkex.server.storage.home import Home
from tinkex.server.storage.objects.binding import begin, bind, bound
from tinkex.server.storage.objects.cache import Cache
from tinkex.server.storage.objects.folders import ObjectFolders
from tinkex.server.storage.objects.opening import PAYLOADS, PINS, SNAPSHOTS, WEIGHTS
from tinkex.server.storage.objects.store import BadStore, ObjectStore

Tell: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Moved:
    """What was moved by this run, what was there from an earlier one, and all bytes checked."""

    url: str
    moved: int
    present: int
    size_bytes: int


class Migration:
    """Of a home that nobody serves. Blocks; raises `BadStore`, `StoreDown`, or `OSError` for what
    came back other than it went."""

    def __init__(self, home: Home, url: str, tell: Tell) -> None:
        known = bound(home.root)
        if known is not None and known != url.rstrip("/"):
            raise BadStore(f"{home.root} keeps its objects in {known} already")
        self._home, self._tell = home, tell
        self._store = ObjectStore(url.rstrip("/"))
        self._moved = self._present = self._bytes = 0

    def run(self) -> Moved:
        begin(self._home.root, self._store)
        cache = Cache(sys.maxsize)
        weights = self._folders(WEIGHTS, cache)
        snapshots = self._folders(SNAPSHOTS, cache)
        self._move_folders(self._home.weights, weights)
        self._move_folders(self._home.snapshots, snapshots)
        self._move_pins(weights)
        self._move_payloads()
        bind(self._home.root, self._store)
        for source, folders in ((self._home.weights, weights), (self._home.snapshots, snapshots)):
            self._become_cache(source, folders)
        for emptied in (self._home.payloads, self._home.pins):
            shutil.rmtree(emptied, ignore_errors=True)
        return Moved(self._store.url, self._moved, self._present, self._bytes)

    def _folders(self, prefix: str, cache: Cache) -> ObjectFolders:
        folders = ObjectFolders(self._home.cache / prefix, self._store, prefix, cache)
        folders.open()
        return folders

    def _move_folders(self, root: Path, folders: ObjectFolders, prefix: str = "") -> None:
        for source in _inside(root):
            if not (source / manifest.MANIFEST_NAME).is_file():
                manifest.write(source)  # one made before there were any
            manifest.verify(source)
            name = f"{prefix}{source.name}"
            self._count(source.name, manifest.read(source).size_bytes, folders.has(name))
            if not folders.has(name):
                folders.upload(name, source)
            folders.verify(name, source)

    def _move_pins(self, weights: ObjectFolders) -> None:
        """What a load reads may belong to no checkpoint any more: it gets a folder of its own."""
        self._move_folders(self._home.pins, weights, "pin-")
        for source in _inside(self._home.pins):
            content = json.dumps({"folder": f"pin-{source.name}"}).encode()
            self._store.put(f"{PINS}/{source.name}", content)

    def _move_payloads(self) -> None:
        if not self._home.payloads.is_dir():
            return
        blobs, names = SegmentBlobs(self._home.payloads), self._blob_names()
        for name in sorted(names - blobs.missing(names)):
            self._move_blob(name, blobs.get(name))

    def _blob_names(self) -> set[str]:
        if self._home.lease is not None:
            return self._home.lease.read(operations_table.blob_names)
        with only_reading(self._home.database) as database:
            return operations_table.blob_names(database)

    def _move_blob(self, name: str, data: bytes) -> None:
        key, digest = f"{PAYLOADS}/{name}", hashlib.sha256(data).hexdigest()
        there = self._store.sha256(key) == digest
        self._count(name, len(data), there)
        if not there:
            self._store.put(key, data)
            if self._store.sha256(key) != digest:
                raise OSError(f"{name} came back from the object store with other bytes")

    def _become_cache(self, root: Path, folders: ObjectFolders) -> None:
        for source in _inside(root):
            if not folders.path(source.name).exists():
                folders.keep(source.name, source)
        shutil.rmtree(root, ignore_errors=True)

    def _count(self, name: str, size: int, present: bool) -> None:
        self._bytes += size
        if present:
            self._present += 1
        else:
            self._moved += 1
            self._tell(name)


def _inside(root: Path) -> list[Path]:
    """The sealed folders below a root."""
    found = sorted(root.iterdir()) if root.is_dir() else []
    return [path for path in found if not path.name.startswith("tmp-")]
