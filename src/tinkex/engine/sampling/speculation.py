"""Speculative decoding by prompt lookup: guesses a sequence's next tokens from its earlier ones.

On a CPU a product of few rows takes as long as one of a few more. The spare rows get guesses. A
guess that the draw before it confirms has saved a step; any other has cost little. A match of one
token only is no longer tried where fewer than one in five such guesses come true. The tokens drawn
are the same as without guesses. Knows tokens, nothing of models.
"""

from __future__ import annotations

from collections.abc import Iterable

_WIDTHS = (2, 1)
"""How many of the last tokens are looked up earlier in the sequence; the longer match comes
first."""

_WRONG_FOR_A_RIGHT = 4
"""Wrong guesses that one right guess pays for, and the initial allowance."""


class Past:
    """A growing sequence, and what last followed each of its tokens and pairs of tokens."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}
        self._guessed: int | None = None
        self._trust = _WRONG_FOR_A_RIGHT

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self._judge(token)
            place = len(self._tokens)
            for width in _WIDTHS:
                if place >= width:
                    self._after[tuple(self._tokens[-width:])] = place
            self._tokens.append(token)

    def guess(self, count: int) -> tuple[int, ...]:
        """The next `count` tokens, or none if the last ones did not occur before."""
        for width in _WIDTHS if self._trust else _WIDTHS[:1]:
            place = self._after.get(tuple(self._tokens[-width:]))
            if place is not None:
                guesses = self._continued(place, count)
                self._guessed = guesses[0]
                return guesses
        return ()

    def _judge(self, token: int) -> None:
        """Compare the last guess with the token that came."""
        if self._guessed is not None:
            right = token == self._guessed
            change = _WRONG_FOR_A_RIGHT if right else -1
            self._trust = min(max(self._trust + change, 0), 2 * _WRONG_FOR_A_RIGHT)
            self._guessed = None

    def _continued(self, place: int, count: int) -> tuple[int, ...]:
        """The tokens from `place` on; past the end the guesses themselves are read again."""
        found = self._tokens[place : place + count]
        while len(found) < count:
            found.append(found[len(found) - (len(self._tokens) - place)])
        return tuple(found)
