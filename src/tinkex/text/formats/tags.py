"""Tags in text that arrives in parts."""

from __future__ import annotations

from collections.abc import Sequence


def cut(text: str, tags: Sequence[str]) -> tuple[str, str | None, str]:
    """(before, tag, after) at the first tag; without one, (what is no part of a tag, None, what
    may yet become one)."""
    places = [(text.find(tag), tag) for tag in tags if tag in text]
    if places:
        place, tag = min(places)
        return text[:place], tag, text[place + len(tag) :]
    kept = max((overlap(text, tag) for tag in tags), default=0)
    return text[: len(text) - kept], None, text[len(text) - kept :]


def overlap(text: str, tag: str) -> int:
    """How long an end of the text is that the tag begins with."""
    for size in range(min(len(text), len(tag) - 1), 0, -1):
        if text.endswith(tag[:size]):
            return size
    return 0
