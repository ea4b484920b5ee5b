"""The accounts of a paged cache: who holds each page, and which pages the prefix cache can find.

A page is held by any number of sequences. A full page may also be filed under a key that stands for
every token up to its end and the weights that computed it. When no sequence holds it any more, it
can be found until its room is needed, oldest first. Knows nothing of tensors.

Page 0 belongs to no sequence: rows that only pad a batch write there.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from numpy.typing import NDArray

SCRATCH_PAGE = 0


class PagePool:
    def __init__(self, total: int, size: int) -> None:
        if total < 1:
            raise ValueError(f"a page pool needs at least one page, not {total}")
        self.total = total
        self.size = size
        self.reset()

    def reset(self) -> None:
        """Reset: no page is held, none can be found."""
        total = self.total
        self._free = list(range(total, 0, -1))
        self._holders: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._page_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}

    @property
    def used(self) -> int:
        """Pages that are held."""
        return len(self._holders)

    @property
    def available(self) -> int:
        """Pages that `take` could hand out now."""
        return len(self._free) + len(self._idle)

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.size)

    def take(self, count: int) -> list[int]:
        """Hold `count` pages with no content of use. The caller checks `available` first."""
        if count > self.available:
            raise MemoryError(f"{count} pages asked for, {self.available} available")
        pages = [self._take_one() for _ in range(count)]
        self._holders.update((page, 1) for page in pages)
        return pages

    def hold(self, pages: Iterable[int]) -> None:
        """Hold pages once more that are held already or that `find` returned."""
        for page in pages:
            self._idle.pop(page, None)
            self._holders[page] = self._holders.get(page, 0) + 1

    def release(self, pages: Iterable[int]) -> None:
        """Give up one hold on each page."""
        for page in pages:
            left = self._holders[page] - 1
            if left:
                self._holders[page] = left
                continue
            del self._holders[page]
            if page in self._key_of:
                self._idle[page] = None
            else:
                self._free.append(page)

    def holders(self, page: int) -> int:
        """How many sequences hold a page."""
        return self._holders.get(page, 0)

    def file(self, page: int, key: bytes) -> None:
        """File a full, held page under its key. If another page has the key already, that one
        stays."""
        if key not in self._page_of and page not in self._key_of:
            self._page_of[key] = page
            self._key_of[page] = key

    def find(self, keys: Iterable[bytes]) -> list[int]:
        """The pages of the longest run of known keys. They are not held yet: `hold` them."""
        found = []
        for key in keys:
            page = self._page_of.get(key)
            if page is None:
                break
            found.append(page)
        return found

    def idle_among(self, pages: Iterable[int]) -> int:
        """How many of these `available` counts: holding them takes that many away."""
        return sum(page in self._idle for page in pages)

    def forget_all(self) -> None:
        """Remove all pages from the prefix cache."""
        self._free.extend(self._idle)
        self._idle.clear()
        self._page_of.clear()
        self._key_of.clear()

    def check_idle(self) -> None:
        """Raise unless no page is held and every page is accounted for."""
        if self._holders or self.available != self.total:
            raise RuntimeError(
                f"page accounts do not balance when idle: {len(self._holders)} held,"
                f" {len(self._free)} free, {len(self._idle)} reusable of {self.total}"
            )

    def _take_one(self) -> int:
        if self._free:
            return self._free.pop()
        page, _ = self._idle.popitem(last=False)
        self._forget(page)
        return page

    def _forget(self, page: int) -> bytes:
        """Remove a page from the prefix cache; returns the key it was filed under."""
        key = self._key_of.pop(page)
        del self._page_of[key]
        return key


class PageKeys:
    """The keys of a growing sequence's full pages under one weights version.

    Each key digests the one before it, so it stands for the whole prefix.
    """

    def __init__(self, version: int, size: int) -> None:
        self._size = size
        self._last = version.to_bytes(8, "little")
        self.keys: list[bytes] = []

    def extend(self, tokens: NDArray[Any]) -> None:
        """Add keys until every full page of `tokens`, the sequence from its start, has one."""
        for page in range(len(self.keys), len(tokens) // self._size):
            part = tokens[page * self._size : (page + 1) * self._size]
            self._last = hashlib.blake2b(self._last + part.tobytes(), digest_size=16).digest()
            self.keys.append(self._last)
