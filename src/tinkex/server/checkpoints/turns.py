"""A limit on concurrency per tenant: a tenant's excess requests wait, and no other tenant's."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary


class Turns:
    """So many requests of each tenant at a time; the others wait in order."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def of(self, tenant: str) -> asyncio.Semaphore:
        """To be held (`async with`) for the length of a turn."""
        return self._of.setdefault(tenant, asyncio.Semaphore(self._at_once))
