"""A home's object store as the server uses it: opened, its outages, its pending deletions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tinkex.server.storage.objects.cache import Cache
from tinkex.server.storage.objects.store import ObjectStore


class Part(Protocol):
    """A kind of thing in the store."""

    def open(self) -> None: ...

    def delete_due(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RemoteObjects:
    """`open` and `delete_due` block on the store."""

    objects: ObjectStore
    cache: Cache
    parts: Sequence[Part]

    @property
    def trouble(self) -> str | None:
        """Why what needs the store waits, in words."""
        return self.objects.trouble

    def open(self) -> None:
        """Learn what the store has. Raises `StoreDown`."""
        for part in self.parts:
            part.open()

    def delete_due(self) -> None:
        """Delete what could not be deleted while the store did not answer."""
        for part in self.parts:
            part.delete_due()
