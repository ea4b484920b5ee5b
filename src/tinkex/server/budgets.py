"""A budget of bytes held at one time: whoever would exceed it is told to come back later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tinkex.server.refusals import Busy


class ByteBudget:
    """Memory set aside for one purpose. A tenant gets at most half of what the others leave of it.
    So there is always room for the next tenant."""

    def __init__(self, limit: int, purpose: str) -> None:
        self._limit = limit
        self._purpose = purpose
        self._of: Counter[str] = Counter()
        self.used = 0

    def has_room(self, tenant: str, size: int) -> bool:
        held = self._of[tenant]
        return held + size <= (self._limit - (self.used - held)) // 2

    def take(self, tenant: str, size: int) -> None:
        """Count bytes whether or not there is room."""
        self.used += size
        self._of[tenant] += size

    def give_back(self, tenant: str, size: int) -> None:
        self.used -= size
        self._of[tenant] -= size
        if not self._of[tenant]:
            del self._of[tenant]

    @contextmanager
    def growing(self, tenant: str) -> Iterator[Callable[[int], None]]:
        """Take bytes as they arrive, by calling what this yields; all are given back at the end.
        Raises `Busy` when there is no room. Something larger than the budget may pass when it is
        alone."""
        mine = 0

        def take(size: int) -> None:
            nonlocal mine
            if self.used > mine and not self.has_room(tenant, size):
                raise Busy(f"{self._purpose} take this key's part of the memory for them", 1.0)
            mine += size
            self.take(tenant, size)

        try:
            yield take
        finally:
            self.give_back(tenant, mine)
