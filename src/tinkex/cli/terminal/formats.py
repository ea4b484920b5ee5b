"""The ways values are shown to people. Pure functions; no output, no clock of their own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

T = TypeVar("T")

_UNITS = ("KB", "MB", "GB", "TB", "PB")
_MINUTE = 60
_HOUR = 3600
_DAYS_SHOWN_AS_DAYS = 7
_DAYS_SHOWN_AS_WEEKS = 30


def format_size(size: float) -> str:
    """Bytes in the largest unit that leaves at least 1; `N/A` when negative (unknown)."""
    if size < 0:
        return "N/A"
    if size < 1024:
        return f"{int(size)} B"
    for unit in _UNITS:
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} EB"


def format_timestamp(moment: datetime | str | None, now: datetime | None = None) -> str:
    """How long ago, or how far ahead, a moment is; the date when that is over 30 days.

    A moment without a zone is UTC. A string that is no ISO 8601 time is returned as it is.
    """
    if not moment:
        return "N/A"
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment)
        except ValueError:
            return str(moment)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    age = (now or datetime.now(UTC)) - moment
    if abs(age).days > _DAYS_SHOWN_AS_WEEKS:
        return moment.strftime("%Y-%m-%d")
    span = _span(abs(age))
    if age < timedelta(0):
        return f"in {span}" if span else "in less than a minute"
    return f"{span} ago" if span else "just now"


def format_bool(value: bool) -> str:
    """`Yes` or `No`."""
    return "Yes" if value else "No"


def format_optional(value: T | None, form: Callable[[T], str] | None = None) -> str:
    """`N/A` for nothing, otherwise `form(value)`, or the value as text."""
    if value is None:
        return "N/A"
    return form(value) if form else str(value)


def format_count(number: int) -> str:
    """A count in three digits where it is large: `850`, `12.3k`, `4.1M`."""
    size = float(number)
    for unit in ("", "k", "M", "G"):
        if size < 1000:
            return f"{size:.0f}" if not unit else f"{size:.1f}{unit}"
        size /= 1000
    return f"{size:.1f}T"


def format_span(seconds: float) -> str:
    """A length of time in the largest unit that is whole: `1 day`, `36 hours`, `90 seconds`."""
    for unit, length in (("day", 86400), ("hour", _HOUR), ("minute", _MINUTE)):
        if seconds >= length and seconds % length == 0:
            return _count(int(seconds // length), unit)
    return _count(int(seconds), "second")


def _span(age: timedelta) -> str:
    """The length of time in its largest unit; empty up to a minute."""
    if age.days > _DAYS_SHOWN_AS_DAYS:
        return _count(age.days // 7, "week")
    if age.days >= 1:
        return _count(age.days, "day")
    if age.seconds > _HOUR:
        return _count(age.seconds // _HOUR, "hour")
    if age.seconds > _MINUTE:
        return _count(age.seconds // _MINUTE, "minute")
    return ""


def _count(number: int, unit: str) -> str:
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"
