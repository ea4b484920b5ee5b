"""Reads query parameters by name and kind; refuses what does not fit, with the field's name."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime

from tinkex.server.browsing import Page, Scope
from tinkex.server.refusals import Refusal

MOST_PER_PAGE = 1000
_FARTHEST = 2**53


def page(query: Mapping[str, str], default: int) -> Page:
    """`limit` and `offset`; a limit over the most is brought down to it."""
    limit = min(_number(query, "limit", default), MOST_PER_PAGE)
    return Page(limit, _number(query, "offset", 0))


def scope(query: Mapping[str, str]) -> Scope:
    given = query.get("access_scope", "owned")
    if given == "owned":
        return "owned"
    if given == "accessible":
        return "accessible"
    raise Refusal(f"access_scope is {given[:64]!r}: use owned or accessible")


def moment(query: Mapping[str, str], name: str) -> datetime:
    """A time with its offset; without one, UTC is meant."""
    try:
        found = datetime.fromisoformat(query.get(name, ""))
    except ValueError:
        raise Refusal(f"{name} must be an ISO 8601 time, e.g. 2026-01-31T12:00:00Z") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def optional_day(query: Mapping[str, str], name: str) -> date | None:
    if name not in query:
        return None
    try:
        return date.fromisoformat(query[name])
    except ValueError:
        raise Refusal(f"{name} must be a date, e.g. 2026-01-31") from None


def _number(query: Mapping[str, str], name: str, default: int) -> int:
    given = query.get(name, str(default))
    if not (given.isascii() and given.isdigit()) or int(given) > _FARTHEST:
        raise Refusal(f"{name} is {given[:32]!r}: give a whole number of 0 or more")
    return int(given)
