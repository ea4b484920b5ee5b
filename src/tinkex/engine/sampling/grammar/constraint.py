"""The state of one sample in its grammar: the mask of its next draw, and whether it is complete.

A mask has one bit per token id, in int32 words. Tokens that end a text (the model's own and the
request's stop ids) are allowed exactly where the grammar may end.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tinkex.engine.collectives import agree
from tinkex.engine.sampling.grammar.vocabulary import reason

if TYPE_CHECKING:
    from tinkex.engine.sampling.grammar.compiling import Compiled

PATIENCE_S = 0.25
STEP_PATIENCE_S = 0.001
"""Processor time a sample may take for its masks, and more for each: an ordinary one takes 20 to
100 microseconds. Who takes more would slow down everybody in the batch."""


class Constraint:
    """`failed` says why the grammar cannot be followed any further, once that is so."""

    def __init__(self, compiled: Compiled, vocab_size: int, ends: frozenset[int]) -> None:
        self._matcher, self._tokens = compiled.matcher.deep_copy(), compiled.tokens
        self._mask = np.zeros((vocab_size + 31) // 32, np.int32)
        self._address: int = self._mask.ctypes.data
        self._ends = ends
        self._left = PATIENCE_S
        self.failed: str | None = None

    def mask(self, guesses: Sequence[int] = ()) -> NDArray[np.int32]:
        """Which tokens may follow, after these guesses if any. Without guesses, the array is the
        same every time: it holds until this is asked again."""
        begun = time.thread_time()
        if guesses:
            mask = self._guessed(guesses)
        else:
            mask = self._mask
            self._fill(mask, self._address)
        self._left += STEP_PATIENCE_S - agree(time.thread_time() - begun)
        self._check()
        return mask

    def acceptable(self, guesses: Sequence[int]) -> tuple[int, ...]:
        """The first of these tokens that the grammar could go on with."""
        ended = next((at for at, token in enumerate(guesses) if token in self._ends), len(guesses))
        return tuple(guesses[: self._matcher.validate_tokens(list(guesses[:ended]))])

    def take(self, token: int) -> bool:
        """Go on by a drawn token; whether the text is complete with it."""
        if token in self._ends:
            return True
        self._matcher.consume_token(token)
        self._check()
        return self._matcher.is_stopped()

    def _guessed(self, guesses: Sequence[int]) -> NDArray[np.int32]:
        mask = np.zeros_like(self._mask)
        self._matcher.consume_tokens(list(guesses))
        self._fill(mask, mask.ctypes.data)
        self._matcher.rollback(len(guesses))
        return mask

    def _fill(self, mask: NDArray[np.int32], address: int) -> None:
        # What llguidance.numpy does, without its checks: this runs for each token of each sample.
        self._matcher.unsafe_compute_mask_ptr(address, mask.nbytes)
        self._respell(mask)
        if self._matcher.is_accepting():
            for token in self._ends:
                _set(mask, token)

    def _respell(self, mask: NDArray[np.int32]) -> None:
        """Where only one text can follow, llguidance asks the tokenizer for its first token, which
        may be an added one that only looks like the text, say <think> within JSON: take the
        token that spells its beginning."""
        if np.count_nonzero(mask) != 1:
            return
        word = int(np.flatnonzero(mask)[0])
        bits = int(mask.view(np.uint32)[word])
        token = word * 32 + bits.bit_length() - 1
        if bits & (bits - 1) or not self._tokens.is_special_token(token):
            return
        spelled = self._matcher.compute_ff_bytes()
        if spelled and not self._matcher.validate_tokens([token]):
            mask[:] = 0
            _set(mask, self._tokens.greedy_tokenize(spelled.decode(errors="ignore"))[0])

    def _check(self) -> None:
        if self._matcher.is_error():
            self.failed = f"grammar: {reason(self._matcher)}"
        elif self._left < 0:
            self.failed = "grammar: it takes too long to follow; simplify it"


def _set(mask: NDArray[np.int32], token: int) -> None:
    mask.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)
