"""Which of the models a request lists: all, or a page of them as Anthropic's clients ask for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tinkex.server.endpoints.errors import Unfit
from tinkex.server.http.queries import FARTHEST, MOST_PER_PAGE, Query


class ModelPage(NamedTuple):
    """At most `limit` after one of them, or before it."""

    limit: int
    after: str | None
    before: str | None

    def of(self, names: Sequence[str]) -> tuple[slice, bool]:
        """Where the page lies in these, and whether there are more in its direction."""
        start = 0 if self.after is None else _place("after_id", self.after, names) + 1
        end = len(names) if self.before is None else _place("before_id", self.before, names)
        count = max(0, end - start)
        kept = min(self.limit, count)
        if self.before is not None and self.after is None:
            return slice(end - kept, end), kept < count
        return slice(start, start + kept), kept < count


def model_page(query: Query) -> ModelPage:
    limit = query.number("limit", FARTHEST)
    if limit != FARTHEST and not 1 <= limit <= MOST_PER_PAGE:
        raise Unfit(f"limit is {limit}; it must be 1 to {MOST_PER_PAGE}", "limit")
    return ModelPage(limit, query.optional_text("after_id"), query.optional_text("before_id"))


def _place(field: str, name: str, names: Sequence[str]) -> int:
    if name not in names:
        raise Unfit(f"{field} is {name[:200]!r}, which is none of the models listed", field)
    return names.index(name)
