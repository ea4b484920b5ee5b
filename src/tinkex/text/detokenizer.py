"""Incremental detokenization: tokens in as they are drawn, whole characters out.

A character may be spread over several tokens, and some tokenizers spell a token differently at the
start of a text. So tokens are decoded together with the last one whose text was complete, and what
may be the beginning of a character waits until it is one. Where vocabularies have a token for each
byte (SentencePiece's byte fallback), decoders give up a whole row of such tokens for one that is
missing or too much: they are decoded by whole characters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

_UNFINISHED = "\ufffd"
_LONGEST = 3
"""Bytes of a character that is not complete: a decoder shows each as U+FFFD, or all as one."""
_WINDOW = 64
"""Tokens without a whole character among them that are looked at again with every new one."""


class Detokenizer:
    """The text of one sequence. Tokens in `hidden` have none."""

    def __init__(
        self,
        backend: Any,
        hidden: Collection[int] = (),
        alone: dict[int, int] | None = None,
        *,
        raw: Mapping[int, int] | None = None,
        after: Sequence[int] = (),
    ) -> None:
        """`backend` is a `tokenizers.Tokenizer`; `alone` remembers how long a text single tokens
        have, for all sequences that share it; `raw` are the tokens that are one byte each. The
        sequence goes on with a text that ends with the tokens `after`."""
        self._backend = backend
        self._hidden = hidden
        self._alone = {} if alone is None else alone
        self._raw = {} if raw is None else raw
        self._ids: list[int] = []
        self._said = 0
        self._begun: list[int] = []
        self.add(after)

    def add(self, tokens: Iterable[int]) -> str:
        """What can be said after these tokens and could not before."""
        shown = [token for token in tokens if token not in self._hidden]
        if not self._raw:
            return self._decoded(shown)
        return "".join(
            part if isinstance(part, str) else self._decoded(part) for part in self._parts(shown)
        )

    def _parts(self, tokens: Sequence[int]) -> Iterator[list[int] | str]:
        """Tokens that spell whole characters, each that is written in bytes for itself, and what
        stands for bytes that are none."""
        plain: list[int] = []
        for token in tokens:
            if token in self._raw:
                if plain:
                    yield plain
                    plain = []
                yield from self._with_byte(token)
            else:
                yield from self._broken_off()
                plain.append(token)
        if plain:
            yield plain

    def _with_byte(self, token: int) -> Iterator[list[int] | str]:
        self._begun.append(token)
        try:
            bytes(self._raw[each] for each in self._begun).decode()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data":
                return
            first = len(self._begun) == 1
            yield from self._broken_off()
            if not first:
                yield from self._with_byte(token)
        else:
            whole, self._begun = self._begun, []
            yield whole

    def _broken_off(self) -> Iterator[str]:
        """One for a character of which not all bytes came."""
        if self._begun:
            self._begun = []
            yield _UNFINISHED

    def _decoded(self, new: list[int]) -> str:
        if not new:
            return ""
        self._ids += new
        text = self._text()
        settled = _settled(text)
        found = self._say(settled)
        if settled == text:
            self._forget()
        elif len(self._ids) > _WINDOW:
            self._ids = self._ids[-_LONGEST - 1 :]
            self._said = len(_settled(self._text()))
        return found

    def end(self) -> str:
        """What was still held back: the remains of a character that will not be finished."""
        return self._say(self._text()) + "".join(self._broken_off())

    def _forget(self) -> None:
        """Keep the last character's tokens only."""
        self._ids = self._ids[-_last(self._ids, self._raw) :]
        one = len(self._ids) == 1
        self._said = self._length_alone(self._ids[0]) if one else len(self._text())

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


def _last(tokens: Sequence[int], raw: Mapping[int, int]) -> int:
    """How many tokens the last character has: more than one if they are bytes."""
    for count, token in enumerate(tokens[: -_LONGEST - 2 : -1], start=1):
        byte = raw.get(token)
        if byte is None or byte < 0x80:
            return 1
        if byte >= 0xC0:
            return count
    return 1
