"""Watches the free space on a home's disk, and warns before it runs out."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from tinkex.server.clock import Clock
from tinkex.server.settings import GIB

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 30.0
WARN_EVERY_S = 3600.0
_LOW_BYTES = 5 * GIB
_LOW_SHARE = 0.05


class DiskWatch:
    """`relieve` is called while the disk is low; it frees what it can."""

    def __init__(self, root: Path, relieve: Callable[[], Awaitable[object]], clock: Clock) -> None:
        self._root = root
        self._relieve = relieve
        self._clock = clock
        self._warned: float | None = None

    @property
    def is_low(self) -> bool:
        return self._warned is not None

    async def live(self) -> None:
        """Look for ever."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        try:
            total, _, free = shutil.disk_usage(self._root)
        except OSError:
            return
        if free >= _low(total):
            self._warned = None
            return
        now = self._clock.monotonic()
        if self._warned is None or now - self._warned >= WARN_EVERY_S:
            self._warned = now
            text = "the disk of %s has %.1f GiB left of %.0f: tinkex home du shows what takes room"
            logger.warning(text, self._root, free / GIB, total / GIB)
        await self._relieve()


def _low(total: int) -> float:
    """Of so many bytes of a disk, how few are left when it is low."""
    return min(_LOW_BYTES, _LOW_SHARE * total)


def has_spare_room(folder: Path) -> bool:
    """Whether a folder's disk has so much left that what can be done without may stay. Twice as
    much as where it is low: nobody needs to be warned of that."""
    total, _, free = shutil.disk_usage(folder)
    return free >= 2 * _low(total)


def free_bytes(root: Path) -> int:
    """What the disk of a home has left."""
    return shutil.disk_usage(root).free
