"""Decides when a sequence of generated tokens ends. Knows tokens and text, nothing of models.

What stops a sequence is part of it: the stop id, or every token up to the one that completes the
stop text, is returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from tinkex.engine.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

StopReason = Literal["stop", "length"]

_CUT = 8
"""Characters at the start of a decoded tail that may be a cut one's remains."""


class Stopping:
    """The stop rule of one request, asked after every new token."""

    def __init__(
        self,
        stop: tuple[int | str, ...] | None,
        eos: Iterable[int],
        max_tokens: int,
        tokenizer: Tokenizer | None,
        at_eos: bool = False,
    ) -> None:
        wanted = (*(stop or ()), *(eos if stop is None or at_eos else ()))
        self.ids = frozenset(item for item in wanted if isinstance(item, int))
        self._texts = tuple(item for item in wanted if isinstance(item, str))
        self.max_tokens = max_tokens
        if self._texts and tokenizer is None:
            raise UserError("stop: the model has no tokenizer.json, so only stop ids work")
        if "" in self._texts:
            raise UserError("stop: an empty string would stop every sequence; remove it")
        self._tokenizer = tokenizer
        self._longest = max((len(text) for text in self._texts), default=0)
        self._inside = _inside_characters(tokenizer) if self._texts else frozenset()

    def reason(self, generated: Sequence[int]) -> StopReason | None:
        """Why the sequence ends after its last token, or None if it goes on."""
        if generated and generated[-1] in self.ids:
            return "stop"
        if generated and self._texts and self._text_found(generated):
            return "stop"
        return "length" if len(generated) >= self.max_tokens else None

    def _text_found(self, generated: Sequence[int]) -> bool:
        """Whether the last token completes a stop text: only as much is decoded as one may span."""
        enough = self._longest + len(self._decode(generated[-1:])) + _CUT
        count = _CUT + self._longest // 4
        text = self._decode(self._last(generated, count))
        while count < len(generated) and len(text) < enough:
            count *= 2
            text = self._decode(self._last(generated, count))
        return any(stop in text for stop in self._texts)

    def _last(self, generated: Sequence[int], count: int) -> Sequence[int]:
        """So many of the last tokens, and those that a character among them begins with."""
        start = max(0, len(generated) - count)
        while start > 0 and generated[start] in self._inside:
            start -= 1
        return generated[start:]

    def _decode(self, tokens: Sequence[int]) -> str:
        assert self._tokenizer is not None
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))


def _inside_characters(tokenizer: Tokenizer | None) -> frozenset[int]:
    """The tokens that are a byte of a character but its first (SentencePiece's byte fallback). A
    row of such bytes that is cut within a character has no text at all."""
    assert tokenizer is not None
    ids = (tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(0x80, 0xC0))
    return frozenset(token for token in ids if token is not None)
