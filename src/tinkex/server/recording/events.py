"""Live updates: a bounded ring of events with ids, from which any reader may resume.

Nothing is kept per reader except the id it saw last. So a slow reader costs nothing, and one that
was away too long is told to read everything again. An id is the life of the server and a number.
Publishing is appending; readers do the rest.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

Kind = Literal["point", "run", "checkpoint", "sample"]
REMEMBERED = 8192


class Event(NamedTuple):
    """An event of a tenant."""

    number: int
    tenant: str
    kind: Kind
    data: Mapping[str, Any]


class News(NamedTuple):
    """Events since an id, and the id to ask with next; `missed` if some are gone."""

    id: str
    events: tuple[Event, ...] = ()
    missed: bool = False


class Events:
    """The ring of one life of the server."""

    def __init__(self) -> None:
        self._life = secrets.token_hex(4)
        self._count = 0
        self._ring: deque[Event] = deque(maxlen=REMEMBERED)
        self._news = asyncio.Event()
        self._waiting = 0
        self.watchers: Counter[str] = Counter()
        self.is_closed = False

    def publish(self, tenant: str, kind: Kind, data: Mapping[str, Any]) -> None:
        self._count += 1
        self._ring.append(Event(self._count, tenant, kind, data))
        if self._waiting:
            self._news.set()
            self._news = asyncio.Event()

    def id_of(self, number: int) -> str:
        return f"{self._life}-{number}"

    @property
    def newest(self) -> str:
        return self.id_of(self._count)

    def since(self, last: str, tenant: str | None) -> News:
        """The events that a tenant, or with None anyone, has not seen since the event with id
        `last`."""
        number = self._number(last)
        if number is None:
            return News(self.newest, missed=True)
        fresh = []
        for event in reversed(self._ring):
            if event.number <= number:
                break
            if tenant is None or event.tenant == tenant:
                fresh.append(event)
        return News(self.newest, tuple(reversed(fresh)))

    def close(self) -> None:
        """No more events will come: release the waiting readers."""
        self.is_closed = True
        self._news.set()

    @contextmanager
    def watching(self, tenant: str) -> Iterator[None]:
        """Counts a tenant's streams in `watchers`."""
        self.watchers[tenant] += 1
        try:
            yield
        finally:
            self.watchers[tenant] -= 1
            if not self.watchers[tenant]:
                del self.watchers[tenant]

    async def after(self, last: str) -> None:
        """Wait until there is an event after the id `last`, or there never will be."""
        self._waiting += 1
        try:
            while last == self.newest and not self.is_closed:
                await self._news.wait()
        finally:
            self._waiting -= 1

    def _number(self, last: str) -> int | None:
        """The number of an id of this life whose successors are all still here."""
        life, _, text = last.rpartition("-")
        if life != self._life or not (text.isascii() and text.isdigit()) or len(text) > 18:
            return None
        number = int(text)
        oldest = self._count - len(self._ring)
        return number if oldest <= number <= self._count else None
