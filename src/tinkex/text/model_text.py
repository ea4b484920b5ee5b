"""A model's text: its tokenizer, its chat template and what tokens spell, from its folder.

Made once per model and shared: nothing here changes after that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinkex.text.chat_template import render_chat, variables_of
from tinkex.text.detokenizer import Detokenizer
from tinkex.text.errors import TokenizerError
from tinkex.text.formats import thinking, untaught
from tinkex.text.formats.chosen import Format, format_of
from tinkex.text.formats.told_reasoning import with_reasoning
from tinkex.text.light_tokenizer import Tokenizer
from tinkex.text.literals import Literals
from tinkex.text.token_bytes import TokenBytes

MOST_CHARACTERS = 4 * 2**20
"""Of a text that is made tokens: more than a million of them, and a gigabyte while that is done."""
_LONG = 8 * 1024
_TAIL = 8
"""Tokens of what comes before that may say how the next ones are spelt."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation as the model reads it. `thinking` says that it ends inside reasoning."""

    tokens: list[int]
    thinking: bool


class ModelText:
    """The text side of one served model."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.tokenizer = Tokenizer(folder, name)
        self.backend = self.tokenizer._backend
        self.pieces = TokenBytes(self.backend)
        self._alone: dict[int, int] = {}
        added = self.backend.get_added_tokens_decoder().items()
        self.special = frozenset(token for token, what in added if what.special)
        self.template: str | None = self.tokenizer.chat_template
        self._with_tools = self.tokenizer.template_for(())
        self.format: Format = format_of(self._with_tools)
        self._literals = Literals(self.pieces.text(token) for token in self.special)

    @property
    def variables(self) -> frozenset[str]:
        """What its templates read that their caller may set."""
        templates = {self.template, self._with_tools} - {None}
        return frozenset[str]().union(*map(variables_of, templates))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Tokens of a text; what spells a special token in it becomes one."""
        if len(text) <= _LONG:
            ids: list[int] = self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
            return ids
        if len(text) > MOST_CHARACTERS:
            raise TokenizerError(
                f"a text of {len(text)} characters is too long to be made tokens; the limit is "
                f"{MOST_CHARACTERS}: send parts of it, or token ids"
            )
        # `encode` lets no other thread of the process run meanwhile, and notes where tokens lie
        (found,) = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return list(found.ids)

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = False) -> str:
        if len(tokens) <= _LONG:
            return str(self.backend.decode(list(tokens), skip_special_tokens))
        (text,) = self.backend.decode_batch([tokens], skip_special_tokens=skip_special_tokens)
        return str(text)

    def detokenizer(
        self,
        show_special: bool = False,
        visible: Collection[str] = (),
        after: Sequence[int] = (),
    ) -> Detokenizer:
        """For one sequence that is being drawn; of the special tokens only `visible` ones show.
        Its text goes on with that of the tokens it comes `after`."""
        shown = {token for token in self.special if self.pieces.text(token) in visible}
        hidden = () if show_special else self.special - shown
        before = [token for token in after[-_TAIL:] if token not in self.special]
        raw = self.pieces.raw
        return Detokenizer(self.backend, hidden, self._alone, raw=raw, after=before)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any],
        continued: bool = False,
        **variables: Any,
    ) -> Chat:
        """Tokens of a conversation up to where the model answers, or goes on with its last message
        if that is to be `continued`. What spells a special token in it stays text: only the
        template writes special tokens."""
        text, mark = self._rendered(messages, tools, continued, variables)
        if len(text) > MOST_CHARACTERS:
            raise TokenizerError(
                f"the conversation has {len(text)} characters; the limit is {MOST_CHARACTERS}"
            )
        parts = text.split(mark)
        tokens = [token for part in parts for token in self.encode(part, False)]
        opened = parts[-1].rstrip().endswith(thinking.OPEN)
        return Chat(tokens, opened or (continued and thinking.is_open(messages[-1]["content"])))

    def _rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any],
        continued: bool,
        variables: Any,
    ) -> tuple[str, str]:
        template = self._with_tools if tools else self.template
        if template is None:
            raise TokenizerError(
                f"model {self.name!r} has no chat template: send token ids or text to completions"
            )
        if "tools" not in variables_of(template):
            messages, tools = untaught.with_tools(messages, tools), ()
        messages = with_reasoning(messages, template)
        given = {"messages": list(messages), "tools": list(tools) or None, **variables}
        marked, mark = self._literals.mark(given)
        if continued:
            marked = {**marked, "messages": _with_end(marked["messages"], 2 * mark)}
        special = self.tokenizer.special_tokens_map
        given = {**special, **marked, "add_generation_prompt": not continued}
        text = render_chat(template, **given)
        return (self._up_to_end(text, 2 * mark) if continued else text), mark

    def _up_to_end(self, text: str, end: str) -> str:
        """What is written up to the end of the last message's content."""
        before, found, _ = text.rpartition(end)
        if not found:
            raise TokenizerError(
                f"the chat template of {self.name!r} does not write what the last message says, so "
                "it cannot be continued: send a message of the user's last"
            )
        return before


def _with_end(messages: Sequence[Mapping[str, Any]], end: str) -> list[Mapping[str, Any]]:
    *others, last = messages
    return [*others, {**last, "content": last["content"] + end}]
