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


class Stopping:
    """The stop rule of one request, asked after every new token."""

    def __init__(
        self,
        stop: tuple[int, ...] | tuple[str, ...] | None,
        eos: Iterable[int],
        max_tokens: int,
        tokenizer: Tokenizer | None,
    ) -> None:
        wanted: tuple[int | str, ...] = tuple(eos) if stop is None else stop
        self._ids = frozenset(item for item in wanted if isinstance(item, int))
        self._texts = tuple(item for item in wanted if isinstance(item, str))
        self.max_tokens = max_tokens
        if self._texts and tokenizer is None:
            raise UserError("stop: the model has no tokenizer.json, so only stop ids work")
        if "" in self._texts:
            raise UserError("stop: an empty string would stop every sequence; remove it")
        self._tokenizer = tokenizer
        # A token is at least one byte and a character at most four, so no stop text can begin
        # before this many tokens; a few more keep a cut character out of its way.
        self._window = 4 * max((len(text) for text in self._texts), default=0) + 4

    def reason(self, generated: Sequence[int]) -> StopReason | None:
        """Why the sequence ends after its last token, or None if it goes on."""
        if generated and generated[-1] in self._ids:
            return "stop"
        if self._texts and self._text_found(generated[-self._window :]):
            return "stop"
        return "length" if len(generated) >= self.max_tokens else None

    def _text_found(self, tail: Sequence[int]) -> bool:
        assert self._tokenizer is not None
        text = self._tokenizer.decode(list(tail), skip_special_tokens=False)
        return any(stop in text for stop in self._texts)
