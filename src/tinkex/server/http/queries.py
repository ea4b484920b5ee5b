"""Reads query parameters by name and kind; refuses what does not fit, with the field's name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime

from tinkex.server.refusals import Refusal
from tinkex.server.views.queries import Page, Scope

MOST_PER_PAGE = 1000
FARTHEST = 2**53
SCOPES: tuple[Scope, Scope] = ("owned", "accessible")


class Query:
    """The parameters of one request. Unknown ones are left alone: proxies add their own."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def page(self, default: int) -> Page:
        """`limit` and `offset`; a limit over the most is brought down to it."""
        limit = min(self.number("limit", default), MOST_PER_PAGE)
        return Page(limit, self.number("offset", 0))

    def scope(self) -> Scope:
        return "accessible" if self.choice("access_scope", SCOPES) == "accessible" else "owned"

    def number(self, name: str, default: int) -> int:
        given = self._values.get(name, str(default))
        if not (given.isascii() and given.isdigit()) or len(given) > 20 or int(given) > FARTHEST:
            raise Refusal(f"{name} is {given[:32]!r}: give a whole number of 0 or more")
        return int(given)

    def optional_amount(self, name: str) -> float | None:
        """A finite number of any size, if one is given."""
        given = self._values.get(name)
        if not given:
            return None
        try:
            found = float(given)
        except ValueError:
            found = math.nan
        if not math.isfinite(found):
            raise Refusal(f"{name} is {given[:32]!r}: give a number")
        return found

    def choice(self, name: str, options: Sequence[str]) -> str:
        """One of the options; the first when nothing is said."""
        given = self._values.get(name, options[0])
        if given not in options:
            raise Refusal(f"{name} is {given[:64]!r}: use {' or '.join(options)}")
        return given

    def optional_text(self, name: str) -> str | None:
        return self._values.get(name)

    def moment(self, name: str) -> datetime:
        """A time with its offset; without one, UTC is meant."""
        try:
            found = datetime.fromisoformat(self._values.get(name, ""))
            return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
        except (ValueError, OverflowError):
            raise Refusal(f"{name} must be an ISO 8601 time, e.g. 2026-01-31T12:00:00Z") from None

    def optional_day(self, name: str) -> date | None:
        if name not in self._values:
            return None
        try:
            return date.fromisoformat(self._values[name])
        except ValueError:
            raise Refusal(f"{name} must be a date, e.g. 2026-01-31") from None
