"""Parses HTTP's `Range` header: which part of something a client asks for. Pure.

One range of bytes is honoured. Several ranges, other units and what cannot be parsed are answered
with the whole, as the standard allows.

Used for archives only. They are made while they are sent, so that no second copy of the weights is
written first. Ranges of files are the web framework's (`FileResponse`).
"""

from __future__ import annotations

import re
from typing import NamedTuple

_ONE = re.compile(r"bytes=(\d*)-(\d*)")


class Span(NamedTuple):
    """The bytes from `start` up to, but not including, `end`, of `size`."""

    start: int
    end: int
    size: int

    @property
    def header(self) -> str:
        """The `Content-Range` header for it."""
        return f"bytes {self.start}-{self.end - 1}/{self.size}"


class OutOfRange(Exception):
    """The range begins after the end."""


def asked(header: str | None, size: int) -> Span | None:
    """The range that a `Range` header asks for, of `size` bytes; None means the whole."""
    found = _ONE.fullmatch(header or "")
    if found is None or found.groups() == ("", ""):
        return None
    first, last = found.groups()
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < int(first):
            return None
    if start >= end:
        raise OutOfRange(f"there are {size} bytes")
    return Span(start, end, size)
