"""Reasoning between tags, before the answer: told apart, and without the line breaks around it."""

from __future__ import annotations

from tinkex.text.formats.pieces import Parser, Piece, Reasoning
from tinkex.text.formats.tags import cut

OPEN, CLOSE = "<think>", "</think>"


def is_open(text: str) -> bool:
    """Whether a text ends within reasoning."""
    return text.rfind(OPEN) > text.rfind(CLOSE)


class Thinking:
    """What stands between the tags is reasoning; the rest goes to `answer`. With `inside` the
    prompt has opened the tag already."""

    def __init__(self, answer: Parser, inside: bool) -> None:
        self._answer = answer
        self._state = "inside" if inside else "before"
        self._held = ""
        self._said = False

    def add(self, text: str) -> list[Piece]:
        if self._state == "after":
            return self._answer.add(text)
        self._held += text
        step = {"before": self._before, "inside": self._inside, "gap": self._gap}
        return step[self._state]()

    def end(self) -> list[Piece]:
        held, self._held = self._held, ""
        if self._state == "before":
            return [*self._answer.add(held), *self._answer.end()]
        thought = self._thought(held.rstrip("\n")) if self._state == "inside" else []
        return [*thought, *self._answer.end()]

    def _before(self) -> list[Piece]:
        """A model that thinks begins with it: anything else ends the search."""
        start = self._held.lstrip()
        if start.startswith(OPEN):
            self._state, self._held = "inside", start.removeprefix(OPEN)
            return self._inside()
        if OPEN.startswith(start):
            return []
        self._state, held = "after", self._held
        self._held = ""
        return self._answer.add(held)

    def _inside(self) -> list[Piece]:
        before, tag, after = cut(self._held, [CLOSE])
        if tag is None:
            kept = before.rstrip("\n")
            self._held = before[len(kept) :] + after
            return self._thought(kept)
        found, self._held = self._thought(before.rstrip("\n")), after
        self._state = "gap"
        return [*found, *self._gap()]

    def _gap(self) -> list[Piece]:
        """The line breaks behind the tag belong to nobody."""
        rest = self._held.lstrip("\n")
        if not rest:
            self._held = ""
            return []
        self._state, self._held = "after", ""
        return self._answer.add(rest)

    def _thought(self, text: str) -> list[Piece]:
        text = text if self._said else text.lstrip("\n")
        self._said = self._said or bool(text)
        return [Reasoning(text)] if text else []
