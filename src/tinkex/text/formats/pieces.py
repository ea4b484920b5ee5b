"""What a model's answer is made of, piece by piece, and the interface of those who find it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call begins."""

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the arguments of the call that began last, as JSON text."""

    text: str


Piece: TypeAlias = Reasoning | Content | Call | Arguments


class Parser(Protocol):
    """Text in, as it comes; pieces out as soon as it is certain what they are. What looks like a
    call and turns out not to be one is content: nothing is lost."""

    def add(self, text: str) -> list[Piece]: ...

    def end(self) -> list[Piece]: ...


class Plain:
    """An answer that is all content."""

    def add(self, text: str) -> list[Piece]:
        return [Content(text)] if text else []

    def end(self) -> list[Piece]:
        return []
