"""Logprobs as POST /completions has them: four lists side by side, a row for each token."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from tinkex.engine.messages import SampleResult
from tinkex.server.endpoints.draws import Best, likeliest
from tinkex.text.model_text import ModelText

Row = tuple[int, float | None, Best]
"""A token, its logprob where it has one, and the likeliest in its place."""


def prompt_rows(prompt: Sequence[int], result: SampleResult) -> list[Row]:
    """An echoed prompt's tokens; the first was drawn by nobody."""
    assert result.prompt_logprobs is not None
    logprobs = result.prompt_logprobs.tolist()
    best = likeliest(result.topk_prompt_logprobs) or [[] for _ in prompt]
    known = [None if math.isnan(logprob) else logprob for logprob in logprobs]
    return list(zip(prompt, known, best, strict=True))


def drawn_rows(tokens: Sequence[int], logprobs: Sequence[float], best: Sequence[Best]) -> list[Row]:
    return list(zip(tokens, logprobs, best or [[] for _ in tokens], strict=True))


class CompletionLogprobs:
    """Makes the lists of one sequence, part by part."""

    def __init__(self, text: ModelText, as_ids: bool, show_special: bool) -> None:
        self._text = text
        self._as_ids = as_ids
        self._hidden = frozenset() if show_special else text.special
        self._offset = 0

    def table(self, rows: Iterable[Row]) -> dict[str, Any]:
        rows = list(rows)
        return {
            "tokens": [self._name(token) for token, _, _ in rows],
            "token_logprobs": [logprob for _, logprob, _ in rows],
            "top_logprobs": [self._top(*row) for row in rows],
            "text_offset": [self._place(token) for token, _, _ in rows],
        }

    def _top(self, token: int, logprob: float | None, best: Best) -> dict[str, float] | None:
        """The likeliest and the token itself; of two that are spelt alike, the likelier one."""
        if logprob is None:
            return None
        found: dict[str, float] = {}
        for other, its in [*best, (token, logprob)]:
            found.setdefault(self._name(other), its)
        return found

    def _name(self, token: int) -> str:
        return f"token_id:{token}" if self._as_ids else self._text.pieces.key(token)

    def _place(self, token: int) -> int:
        """Where in the text a token begins: behind the characters begun before it."""
        place = self._offset
        if token not in self._hidden:
            self._offset += sum(byte & 0xC0 != 0x80 for byte in self._text.pieces[token])
        return place
