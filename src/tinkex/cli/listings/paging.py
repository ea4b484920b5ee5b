"""Fetches long listings page by page, several pages at once, with a bar.

Knows offsets and totals only; what a page holds is the caller's business.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tinkex.cli.line.context import CommandContext
from tinkex.cli.listings.emptiness import explain_empty

T = TypeVar("T")

_PAGES_AT_ONCE = 4


@dataclass(frozen=True)
class Listing(Generic[T]):
    """What was fetched, and how many more there are."""

    items: list[T]
    more: int

    def title(self, noun: str, suffix: str = "") -> str:
        """`3 runs (2 more not shown, use --limit to see more)`."""
        count = len(self.items)
        if count == 0:
            return f"No {noun}s found{suffix}"
        title = f"{count} {noun}{'' if count == 1 else 's'}{suffix}"
        if self.more > 0:
            title += f" ({self.more} more not shown, use --limit to see more)"
        return title


@dataclass(frozen=True)
class Pages(Generic[T]):
    """A listing on the server. `submit(limit, offset)` asks for a page and returns a future;
    `read` takes the answer apart into its items and the total count."""

    noun: str
    size: int
    submit: Callable[[int, int], Any]
    read: Callable[[Any], tuple[list[T], int]]

    def fetch(self, context: CommandContext, limit: int, offset: int) -> Listing[T]:
        """The first `limit` items from `offset` on; all of them when `limit` is 0."""
        first = self._page_size(limit, 0)
        items, total = self.read(context.wait(self.submit(first, offset)))
        if total == 0:
            explain_empty(context)
        available = max(0, total - offset)
        wanted = min(limit or available, available)
        if items and len(items) < wanted:
            items += self._fetch_rest(context, limit, offset, len(items), wanted)
        return Listing(items, max(0, available - len(items)))

    def _fetch_rest(
        self, context: CommandContext, limit: int, offset: int, have: int, wanted: int
    ) -> list[T]:
        starts = deque(range(have, wanted, self.size))
        waiting: deque[Any] = deque()
        items: list[T] = []
        label = f"Fetching {limit or 'all'} {self.noun}s"
        with context.bar(label, wanted, f"{self.noun}s") as bar:
            bar.advance(have)
            while starts or waiting:
                while starts and len(waiting) < _PAGES_AT_ONCE:
                    start = starts.popleft()
                    waiting.append(self.submit(self._page_size(wanted, start), offset + start))
                page, _ = self.read(context.wait(waiting.popleft()))
                items += page
                bar.advance(len(page))
        return items

    def _page_size(self, wanted: int, start: int) -> int:
        return min(self.size, wanted - start) if wanted else self.size
