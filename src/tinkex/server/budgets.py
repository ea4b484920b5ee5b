"""So many bytes at once: who would go beyond is told to come back. Knows not what they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tinkex.server.refusals import Busy


class ByteBudget:
    """Memory set aside for one purpose."""

    def __init__(self, limit: int, purpose: str) -> None:
        self._limit = limit
        self._purpose = purpose
        self.used = 0

    @contextmanager
    def growing(self) -> Iterator[Callable[[int], None]]:
        """Take bytes as they come, by calling what this yields; all are given back at the end.
        `Busy` when others leave no room; something larger than the budget may pass alone."""
        mine = 0

        def take(size: int) -> None:
            nonlocal mine
            if self.used > mine and self.used + size > self._limit:
                raise Busy(f"{self._purpose} take all the memory set aside for them", 1.0)
            mine += size
            self.used += size

        try:
            yield take
        finally:
            self.used -= mine
