"""Work in pieces: generators that yield where other work may have a turn, and return a result."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Pieces: TypeAlias = Generator[None, None, T]


def at_once(pieces: Pieces[T]) -> T:
    """All of it now, nobody having a turn between."""
    while True:
        try:
            next(pieces)
        except StopIteration as ended:
            made: T = ended.value
            return made
