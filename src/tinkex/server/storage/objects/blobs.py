"""Bodies and results too large for a row, each an object of its own.

The store writes an object whole or not at all, so what is there is whole.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable

from tinkex.server.storage.blobs import Meanwhile
from tinkex.server.storage.objects.store import ObjectStore, StoreDown


class ObjectBlobs:
    """A `BlobStore` below one prefix of a store. All but `reserve` and `delete` block on it."""

    def __init__(self, objects: ObjectStore, prefix: str) -> None:
        self._objects, self._prefix = objects, prefix
        self._due: set[str] = set()

    def open(self) -> None:
        """Nothing to learn: the database names all of them."""

    def reserve(self, length: int) -> str:
        """A name nobody else has: also a server that was believed dead may still be writing."""
        return f"{secrets.token_hex(12)}-{length}"

    def put(self, name: str, data: bytes, meanwhile: Meanwhile = None) -> None:
        """Raises `StoreDown`. `meanwhile` runs while the bytes are on their way."""
        errors: list[Exception] = []

        def send() -> None:
            try:
                self._objects.put(self._key(name), data)
            except Exception as error:
                errors.append(error)

        if meanwhile is None:
            send()
        else:
            sender = threading.Thread(target=send, name="objects-put")
            sender.start()
            try:
                meanwhile()
            finally:
                sender.join()
        if errors:
            raise errors[0]

    def get(self, name: str) -> bytes:
        return self._objects.get(self._key(name))

    def delete(self, name: str) -> None:
        """Soon, with `delete_due`: who lets go of a blob does not wait for the store."""
        self._due.add(name)

    def delete_due(self) -> None:
        """Delete what is to be deleted. Blocks on the store."""
        for name in sorted(self._due):
            try:
                self._objects.delete([self._key(name)])
            except StoreDown:
                return
            self._due.discard(name)

    def missing(self, names: Iterable[str]) -> set[str]:
        """Those that the store does not have."""
        wanted = set(names)
        return wanted - self._present() if wanted else wanted

    def keep_only(self, names: Iterable[str]) -> None:
        """After a start: delete all others."""
        self._objects.delete([self._key(name) for name in self._present() - set(names)])

    def _present(self) -> set[str]:
        start = len(self._prefix) + 1
        return {found.key[start:] for found in self._objects.found(f"{self._prefix}/")}

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"
