"""A model's text: its tokenizer and what tokens spell, from the text files of its folder.

Made once per model and shared: nothing here changes after that.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tinkex.text.detokenizer import Detokenizer
from tinkex.text.light_tokenizer import Tokenizer
from tinkex.text.token_bytes import TokenBytes


class ModelText:
    """The text side of one served model."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.tokenizer = Tokenizer(folder, name)
        self.pieces = TokenBytes(self._backend)
        self.special = frozenset(self.tokenizer.all_special_ids)

    @property
    def _backend(self) -> Any:
        return self.tokenizer._backend

    @cached_property
    def template(self) -> str | None:
        """The chat template, if the model has one."""
        template: str | None = self.tokenizer.chat_template
        return template

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Tokens of a text; what spells a special token in it becomes one."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return ids

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = False) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens))

    def detokenizer(self, show_special: bool = False) -> Detokenizer:
        """For one sequence that is being drawn."""
        return Detokenizer(self._backend, () if show_special else self.special)
