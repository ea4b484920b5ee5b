"""Reasoning budget: an answer that thinks for longer than it may is made to stop thinking.

The tokens that end its reasoning are drawn like any others, under a mask that allows nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tinkex.engine.messages import Thinking

_TAIL = 16
"""Tokens at the end among which the closing tag is looked for."""


class Thought:
    """Where one sample stands in its reasoning."""

    def __init__(self, limit: Thinking, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._limit, self._tokenizer = limit, tokenizer
        self._state: Literal["before", "inside", "after"] = "inside" if limit.inside else "before"
        self._ending: list[int] = tokenizer.encode(limit.ending, add_special_tokens=False).ids
        self._forced: list[int] = []
        self._anything = np.full((vocab_size + 31) // 32, -1, np.int32)

    def take(self, generated: Sequence[int]) -> None:
        """Look at a sample whose last token is new."""
        if self._forced:
            self._forced = self._forced[1:]
            return
        if self._state == "before":
            self._look_for_start(generated)
        if self._state == "inside":
            self._look_for_end(generated)

    @property
    def ends(self) -> bool:
        """Whether the next token is one that ends the reasoning."""
        return bool(self._forced)

    def mask(self) -> NDArray[np.int32]:
        """What may be drawn next: anything, or the one token that ends the reasoning."""
        if not self._forced:
            return self._anything
        mask = np.zeros_like(self._anything)
        token = self._forced[0]
        mask.view(np.uint32)[token // 32] = np.uint32(1 << token % 32)
        return mask

    def _look_for_start(self, generated: Sequence[int]) -> None:
        """Reasoning comes first or not at all."""
        opened, text = self._limit.opened, self._text(generated).lstrip()
        if text.startswith(opened):
            self._state = "inside"
        elif not opened.startswith(text) or len(generated) > _TAIL:
            self._state = "after"

    def _look_for_end(self, generated: Sequence[int]) -> None:
        if self._limit.closed in self._text(generated[-_TAIL:]):
            self._state = "after"
        elif len(generated) >= self._limit.tokens:
            self._state, self._forced = "after", self._ending

    def _text(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))
