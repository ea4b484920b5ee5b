"""Incremental detokenization: tokens in as they are drawn, whole characters out.

A character may be spread over several tokens, and some tokenizers spell a token differently at the
start of a text. So tokens are decoded together with the last one whose text was complete, and what
may be the beginning of a character waits until it is one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

_UNFINISHED = "\ufffd"
_LONGEST = 3
"""Bytes of a character that is not complete: a decoder shows each as U+FFFD, or all as one."""
_WINDOW = 64
"""Tokens without a whole character among them that are looked at again with every new one."""


class Detokenizer:
    """The text of one sequence. Tokens in `hidden` have none."""

    def __init__(
        self, backend: Any, hidden: Collection[int] = (), alone: dict[int, int] | None = None
    ) -> None:
        """`backend` is a `tokenizers.Tokenizer`; `alone` remembers how long a text single tokens
        have, for all sequences that share it."""
        self._backend = backend
        self._hidden = hidden
        self._alone = {} if alone is None else alone
        self._ids: list[int] = []
        self._said = 0

    def add(self, tokens: Iterable[int]) -> str:
        """What can be said after these tokens and could not before."""
        new = [token for token in tokens if token not in self._hidden]
        if not new:
            return ""
        self._ids += new
        text = self._text()
        settled = _settled(text)
        found = self._say(settled)
        if settled == text:
            self._ids = self._ids[-1:]
            self._said = self._length_alone(self._ids[0])
        elif len(self._ids) > _WINDOW:
            self._ids = self._ids[-_LONGEST - 1 :]
            self._said = len(_settled(self._text()))
        return found

    def end(self) -> str:
        """What was still held back: the remains of a character that will not be finished."""
        return self._say(self._text())

    def _say(self, text: str) -> str:
        said, self._said = self._said, max(self._said, len(text))
        return text[said:]

    def _length_alone(self, token: int) -> int:
        if token not in self._alone:
            self._alone[token] = len(self._text())
        return self._alone[token]

    def _text(self) -> str:
        return str(self._backend.decode(self._ids, skip_special_tokens=False))


def _settled(text: str) -> str:
    """The text without what the next tokens may still turn into a character."""
    end = len(text)
    while end > max(0, len(text) - _LONGEST) and text[end - 1] == _UNFINISHED:
        end -= 1
    return text[:end]
