"""Which sample numbers may have been accepted, written ahead, so that a restart can report losses.

Samples are not logged one by one. Instead a range of numbers per sampler and client is made durable
before the first number in it is accepted. After a restart every number in the range that is not in
memory counts as lost. A client that knows of none of them ignores that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tinkex.server.storage.database import Store
from tinkex.server.storage.database import samplers as table
from tinkex.server.storage.database.samplers import Window

_STRETCH = 64
_LONGEST = 65_536


@dataclass(slots=True)
class _Range:
    """Sample numbers from `low` up to, but not including, `high`."""

    low: int
    high: int


class SampleWindows:
    """The written ranges of this life of the server, and those of the one before."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ranges: dict[tuple[str, int], _Range] = {}
        self._claims: dict[tuple[str, int], set[int]] = {}
        self._before: dict[tuple[str, int], Window | None] = {}

    def covers(self, sampler_id: str, clone: int, number: int) -> bool:
        window = self._ranges.get((sampler_id, clone))
        return window is not None and window.low <= number < window.high

    async def extend(
        self, sampler_id: str, clone: int, number: int, oldest: Callable[[], int]
    ) -> None:
        """Make a range durable that reaches from `oldest`, the lowest number not yet collected, to
        some way beyond `number`. Ranges asked for at the same time include each other. `oldest` is
        called after all waiting before the write: numbers accepted meanwhile must not fall out of
        the range."""
        key = sampler_id, clone
        await self._remember(key)
        claims = self._claims.setdefault(key, set())
        claims.add(number)
        known = self._ranges.get(key)
        high = max(max(claims) + _STRETCH, 0 if known is None else known.high)
        low = max(min(oldest(), *claims), high - _LONGEST)
        try:
            window = Window(sampler_id, clone, low, high)
            await self._store.write(table.put_window, window)
            self._ranges[key] = _Range(low, high)
        finally:
            claims.discard(number)

    async def lost(self, sampler_id: str, clone: int) -> range:
        """The numbers that an earlier life of the server may have accepted; told once."""
        window = await self._remember((sampler_id, clone))
        self._before[sampler_id, clone] = None
        return range(0) if window is None else range(window.low, window.high)

    async def _remember(self, key: tuple[str, int]) -> Window | None:
        if key not in self._before:
            found = await self._store.read(table.get_window, *key)
            # A concurrent caller that was answered first may have written since.
            self._before.setdefault(key, found)
        return self._before[key]
