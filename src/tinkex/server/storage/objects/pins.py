"""Which stored folders are read by operations that may be repeated: a small object for each.

A pinned folder stays in the store, whatever happens to its checkpoint, and on this disk once it was
fetched, until a snapshot covers the operation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tinkex.engine.messages import WeightsRef
from tinkex.server.storage.objects.cache import Cache
from tinkex.server.storage.objects.folders import ObjectFolders
from tinkex.server.storage.objects.store import BadStore, ObjectStore, StoreDown, patiently
from tinkex.server.storage.pins import pin_name
from tinkex.server.storage.store_threads import at_store


class ObjectPins:
    """The pins of one home. `open` must have been called."""

    def __init__(
        self, objects: ObjectStore, prefix: str, weights: ObjectFolders, cache: Cache
    ) -> None:
        self._objects, self._prefix = objects, prefix
        self._weights, self._cache = weights, cache
        self._folders: dict[str, str] = {}
        self._due: set[str] = set()

    def open(self) -> None:
        """Learn what is pinned. Raises `BadStore` for what cannot be read."""
        for found in self._objects.found(f"{self._prefix}/"):
            self._enter(found.key[len(self._prefix) + 1 :], self._read(found.key))

    def _read(self, key: str) -> str:
        try:
            folder = json.loads(self._objects.get(key))["folder"]
            if isinstance(folder, str) and folder == Path(folder).name:
                return folder
        except (ValueError, KeyError, TypeError):
            pass
        raise BadStore(
            f"{self._objects.url}/{key} is damaged: it says which weights an operation reads that "
            "may have to be repeated. Restore it from a backup or an older version of the object; "
            "delete it only if that checkpoint still exists"
        )

    async def find(self, request_id: str) -> WeightsRef | None:
        folder = self._folders.get(pin_name(request_id))
        return None if folder is None else await self._weights.reference(folder)

    async def pin(self, request_id: str, folder: str, _: Path) -> WeightsRef:
        name = pin_name(request_id)
        content = json.dumps({"folder": folder}).encode()
        put = self._objects.put
        await patiently(lambda: at_store(put, f"{self._prefix}/{name}", content))
        self._enter(name, folder)
        return await self._weights.reference(folder)

    def folders(self) -> set[str]:
        """Those that must not be deleted."""
        return set(self._folders.values())

    def drop(self, request_id: str) -> None:
        self._drop(pin_name(request_id))

    def keep_only(self, request_ids: Iterable[str]) -> None:
        wanted = {pin_name(request_id) for request_id in request_ids}
        for name in self._folders.keys() - wanted:
            self._drop(name)

    def _enter(self, name: str, folder: str) -> None:
        if name not in self._folders:
            self._cache.hold(self._weights.path(folder))
        self._folders[name] = folder

    def _drop(self, name: str) -> None:
        folder = self._folders.pop(name, None)
        if folder is not None:
            self._cache.let_go(self._weights.path(folder))
            self._due.add(name)
        self.delete_due()

    def delete_due(self) -> None:
        """Delete what could not be deleted before."""
        for name in sorted(self._due):
            try:
                self._objects.delete([f"{self._prefix}/{name}"])
            except StoreDown:
                return
            self._due.discard(name)
