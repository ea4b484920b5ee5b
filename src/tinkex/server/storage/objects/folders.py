"""Folders of weights in an object store, with a cache of them on this disk.

A folder is written file by file under its name and the digest of its manifest, the manifest last:
with it the folder counts. Nothing is written twice under one key with other bytes, since the digest
covers them all. What lies there without a manifest was never promised to anyone.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import shutil
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from tinkex.engine.messages import FileLink, WeightsRef
from tinkex.server.storage import manifest
from tinkex.server.storage.folders import Folders, Pack
from tinkex.server.storage.objects.cache import Cache
from tinkex.server.storage.objects.store import (
    Found,
    NoSuchObject,
    ObjectStore,
    StoreDown,
    patiently,
)
from tinkex.server.storage.store_threads import at_store

LINK_S = 3600.0
"""How long an engine elsewhere has to begin with what it was referred to."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """A whole folder in the store."""

    digest: str
    size: int
    made: float


class ObjectFolders(Folders):
    """The folders under one prefix of a store. `open` must have been called."""

    def __init__(self, root: Path, objects: ObjectStore, prefix: str, cache: Cache) -> None:
        super().__init__(root)
        self._objects, self._prefix, self._cache = objects, prefix, cache
        self._stored: dict[str, _Stored] = {}
        self._due: set[str] = set()
        self._fetching: dict[str, asyncio.Lock] = {}

    def open(self) -> None:
        """Learn what the store has; forget what was begun there and never finished."""
        by_name: dict[str, list[Found]] = {}
        for found in self._objects.found(f"{self._prefix}/"):
            by_name.setdefault(found.key.split("/")[1], []).append(found)
        for name, objects in by_name.items():
            self._learn(name, objects)
        for folder in list(self._root.iterdir()):
            if folder.name not in self._stored:
                shutil.rmtree(folder, ignore_errors=True)
        self._cache.take_over(self._root)

    def _learn(self, name: str, objects: list[Found]) -> None:
        whole = [found for found in objects if found.key.endswith(f"/{manifest.MANIFEST_NAME}")]
        if not whole:
            self._objects.delete([found.key for found in objects])
            return
        first = min(whole, key=lambda found: found.modified)
        digest = first.key.split("/")[2]
        size = sum(found.size for found in objects if f"/{digest}/" in found.key)
        self._stored[name] = _Stored(digest, size, first.modified)

    def seal(self, draft: Path) -> str:
        """Upload a folder, its manifest last; raises `StoreDown` with the draft left as it was."""
        name = self.final_name(draft)
        if name in self._stored:
            self.abandon(draft)
            return name
        self.upload(name, draft)
        self.keep(name, draft)
        return name

    def upload(self, name: str, source: Path) -> None:
        """Put a whole folder into the store. Raises `StoreDown`."""
        raw = (source / manifest.MANIFEST_NAME).read_bytes()
        digest, written = hashlib.sha256(raw).hexdigest(), manifest.read(source)
        for file in sorted(written.files):
            self._objects.put(self._key(name, digest, file), source / file)
        last = self._key(name, digest, manifest.MANIFEST_NAME)
        self._objects.put(last, raw)
        self._stored[name] = _Stored(digest, written.size_bytes, time.time())

    def keep(self, name: str, source: Path) -> None:
        """Let a folder that is in the store become its copy here."""
        source.rename(self.path(name))
        self._cache.enter(self.path(name))

    def verify(self, name: str, source: Path) -> None:
        """Read a stored folder back. Raises `OSError` unless every byte is that of `source`."""
        digest, expected = manifest.digest_of(source), manifest.read(source).files
        if not self.has(name) or self._stored[name].digest != digest:
            raise OSError(f"{name} in the object store is another folder than {source}")
        for file, record in expected.items():
            if self._objects.sha256(self._key(name, digest, file)) != record.sha256:
                raise OSError(f"{file} of {name} came back from the object store with other bytes")

    def has(self, name: str) -> bool:
        return name in self._stored

    def is_here(self, name: str) -> bool:
        return self.path(name).is_dir()

    async def files(self, name: str, digest: str | None = None) -> manifest.Manifest:
        if self.is_here(name):
            return await super().files(name, digest)
        get, key = (
            self._objects.get,
            self._key(name, self._known(name).digest, manifest.MANIFEST_NAME),
        )
        return manifest.parse(await patiently(lambda: at_store(get, key)), digest)

    def using(self, name: str) -> AbstractContextManager[None]:
        return self._cache.using(self.path(name))

    async def here(self, name: str) -> Path:
        """The folder on this disk, brought from the store if need be, however long that takes.
        Raises `OSError` for what the store does not have."""
        path = self.path(name)
        with self._cache.using(path):
            async with self._fetching.setdefault(name, asyncio.Lock()):
                if not path.is_dir():
                    await patiently(lambda: at_store(self._fetch, name))
            self._fetching.pop(name, None)
            self._cache.touch(path)
        return path

    async def check(self, name: str, digest: str | None = None) -> None:
        """Every byte of what is here. Of what is not, that all of it is in the store: its bytes are
        checked as they come, by whoever fetches them."""
        if self.is_here(name):
            await super().check(name, digest)
            return
        expected = (await self.files(name, digest)).files
        prefix = self._key(name, self._known(name).digest, "")
        found = await patiently(lambda: at_store(self._objects.found, prefix))
        sizes = {each.key.removeprefix(prefix): each.size for each in found}
        for file, record in sorted(expected.items()):
            manifest.check_size(file, sizes.get(file), record.size)

    async def reference(self, name: str, digest: str = "") -> WeightsRef:
        path = await self.here(name)
        return await self._referred(name, path)

    async def linked(self, name: str) -> WeightsRef | None:
        return await self._referred(name, self.path(name)) if self._objects.signs else None

    async def _referred(self, name: str, path: Path) -> WeightsRef:
        stored = self._known(name)
        listed = await self.files(name, stored.digest)
        return WeightsRef(str(path), stored.digest, await at_store(self._links, name, listed))

    def link(self, name: str, file: str, seconds: float) -> str | None:
        """An address for one file, straight from the store."""
        return self._objects.link(self._key(name, self._known(name).digest, file), seconds)

    async def archive_link(self, name: str, pack: Pack, seconds: float) -> str | None:
        """An address for the whole folder as one object, made when it is first asked for."""
        if not self._objects.signs:
            return None
        key = f"{self._prefix}/{name}/{self._known(name).digest}.tar"
        with self.using(name):
            path = await self.here(name)
            await patiently(lambda: at_store(self._pack, key, path, pack))
        return self._objects.link(key, seconds)

    def _pack(self, key: str, path: Path, pack: Pack) -> None:
        if not self._objects.has(key):
            self._objects.put(key, pack(path))

    async def digest(self, name: str) -> str:
        return self._known(name).digest

    def _links(self, name: str, listed: manifest.Manifest) -> tuple[FileLink, ...]:
        found = []
        for file, record in sorted(listed.files.items()):
            url = self.link(name, file, LINK_S)
            if url is None:
                return ()
            found.append(FileLink(file, record.size, record.sha256, url))
        return tuple(found)

    def _fetch(self, name: str) -> None:
        stored = self._known(name)
        draft = self.begin()
        try:
            raw = self._objects.get(self._key(name, stored.digest, manifest.MANIFEST_NAME))
            (draft / manifest.MANIFEST_NAME).write_bytes(raw)
            for file, record in manifest.read(draft, stored.digest).files.items():
                key = self._key(name, stored.digest, file)
                if self._objects.fetch(key, record.size, draft / file) != record.sha256:
                    raise manifest.CorruptCheckpoint(f"{file} is not the one that was saved")
            draft.rename(self.path(name))
        except BaseException:
            self.abandon(draft)
            raise
        self._cache.enter(self.path(name))

    def _known(self, name: str) -> _Stored:
        stored = self._stored.get(name)
        if stored is None:
            raise NoSuchObject(f"{self._prefix}/{name} is not in the object store")
        return stored

    def delete(self, name: str) -> None:
        """Gone here at once, in the store at once or, while it does not answer, a little later."""
        self._cache.leave(self.path(name))
        self._stored.pop(name, None)
        self._due.add(name)
        self.delete_due()

    def delete_due(self) -> None:
        """Delete what could not be deleted before."""
        for name in sorted(self._due):
            try:
                keys = [found.key for found in self._objects.found(f"{self._prefix}/{name}/")]
                # The manifest goes first: without it nothing of the folder counts.
                self._objects.delete(sorted(keys, key=lambda key: not key.endswith(".json")))
            except StoreDown:
                return
            self._due.discard(name)

    def size(self, name: str) -> int:
        stored = self._stored.get(name)
        return 0 if stored is None else stored.size

    def names(self, made_before: float = math.inf) -> set[str]:
        return {name for name, stored in self._stored.items() if stored.made < made_before}

    def _key(self, name: str, digest: str, file: str) -> str:
        return f"{self._prefix}/{name}/{digest}/{file}"
