"""A bounded cache on this disk of folders in the object store; least recently used go first. Where
the disk is short of room, the cache is smaller.

A folder in use is never dropped. A folder is entered only when the store has it, so any unused one
may be deleted at any time, here, or by hand while no server runs.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

logger = logging.getLogger(__name__)


class Cache:
    """`held` names further folders in use, whenever room is made."""

    def __init__(self, limit_bytes: int, has_room: Callable[[], bool] = lambda: True) -> None:
        """`has_room` says whether this disk has enough left for everything else."""
        self.held: Callable[[], Collection[str]] = frozenset
        self._limit, self._has_room = limit_bytes, has_room
        self._sizes: dict[Path, int] = {}
        self._users: Counter[Path] = Counter()
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        return sum(self._sizes.values())

    def take_over(self, root: Path) -> None:
        """Enter what an earlier life left, oldest first."""
        for folder in sorted(root.iterdir(), key=lambda path: path.stat().st_mtime):
            self.enter(folder)

    def enter(self, folder: Path) -> None:
        """A folder is here and in the store: from now on it may be let go."""
        size = sum(path.stat().st_size for path in folder.iterdir())
        with self._lock:
            self._sizes.pop(folder, None)
            self._sizes[folder] = size
        self._make_room()

    def touch(self, folder: Path) -> None:
        """It was used just now."""
        with self._lock:
            if folder in self._sizes:
                self._sizes[folder] = self._sizes.pop(folder)

    def leave(self, folder: Path) -> None:
        """Delete a folder here, used or not: it is nobody's any more."""
        with self._lock:
            self._sizes.pop(folder, None)
        shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def using(self, folder: Path) -> Iterator[None]:
        """Keep a folder for the length of a `with`, also one that is still to come."""
        self.hold(folder)
        try:
            yield
        finally:
            self.let_go(folder)

    def hold(self, folder: Path) -> None:
        with self._lock:
            self._users[folder] += 1

    def let_go(self, folder: Path) -> None:
        with self._lock:
            self._users[folder] -= 1
            self._users += Counter()  # forgets the zeros
        self._make_room()

    def _is_over(self) -> bool:
        return self.size_bytes > self._limit or not self._has_room()

    def _make_room(self) -> None:
        names = self.held() if self._is_over() else ()
        with self._lock:
            for folder in list(self._sizes):
                if not self._is_over():
                    return
                if not self._users[folder] and folder.name not in names:
                    del self._sizes[folder]
                    shutil.rmtree(folder, ignore_errors=True)
                    logger.debug("%s left the cache of the object store", folder.name)
