"""The model's tokens as llguidance reads them, and how much one grammar may take.

llguidance parses lazily: a grammar costs time token by token, each step within these limits.
Building it has limits as well, but a few kinds of schema evade them, above all an intersection of
patterns. That is why grammars are tried in a process of their own first.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tinkex.engine.errors import UserError

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_CHARACTERS = 1 << 18
STEP_FUEL = 50_000
"""Work of the lexer in one step: about 4 ms."""
LEXER_STATES = 10_000
"""Each takes one or two kilobytes, for as long as a sample with the grammar is under way."""
GRAMMAR_SYMBOLS = 100_000


_IN_WORDS = {"NoExtensionBias": "no text can satisfy it: does a $ref lead back to itself?"}


class Vocabulary:
    """`tokenizer` is the text of a tokenizer.json; `size` the width of the model's logits."""

    def __init__(self, tokenizer: str, size: int, eos: tuple[int, ...]) -> None:
        from llguidance import LLParserLimits, LLTokenizer

        self.tokens = LLTokenizer(tokenizer, n_vocab=size, eos_token=list(eos) or None)
        self._limits = LLParserLimits(
            step_lexer_fuel=STEP_FUEL,
            max_lexer_states=LEXER_STATES,
            max_grammar_size=GRAMMAR_SYMBOLS,
            verbose_errors=False,
        )

    def compile(self, grammar: str) -> LLMatcher:
        """A matcher at the start of the grammar. Raises UserError where there can be none."""
        from llguidance import LLMatcher

        matcher = LLMatcher(self.tokens, grammar, log_level=0, limits=self._limits)
        if not matcher.is_error():
            matcher.compute_bitmask()  # some mistakes show only now
        if matcher.is_error():
            raise UserError(f"grammar: {reason(matcher)}")
        return matcher


def reason(matcher: LLMatcher) -> str:
    """What went wrong, in one line, without where in a text that the sender has never seen."""
    first, *others = matcher.get_error().strip().splitlines() or [""]
    found = re.sub(r"^(at )?\d+\(\d+\): ", "", first)
    if found.endswith(":"):
        said = (line.removeprefix("error: ") for line in others if line.startswith("error: "))
        found = f"{found} {next(said, '')}"
    return _IN_WORDS.get(found, found)[:400]


def is_installed() -> bool:
    from importlib.util import find_spec

    return find_spec("llguidance") is not None
