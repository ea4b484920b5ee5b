"""The channels of gpt-oss (the harmony format): reasoning, answers and tool calls as messages.

<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>
<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>
"""

from __future__ import annotations

import re

from tinkex.text.formats.pieces import Arguments, Call, Content, Piece, Reasoning
from tinkex.text.formats.tags import cut

CHANNEL, MESSAGE, START = "<|channel|>", "<|message|>", "<|start|>"
ENDS = ("<|end|>", "<|return|>", "<|call|>")
MARKERS = (CHANNEL, MESSAGE, START, "<|constrain|>", *ENDS)
_TO = re.compile(r"to=functions\.([^\s<]+)")


class Channels:
    """Messages of one answer. Text before any channel is content."""

    def __init__(self) -> None:
        self._held = ""
        self._header: str | None = None
        self._kind: type[Content] | type[Reasoning] | type[Arguments] = Content

    def add(self, text: str) -> list[Piece]:
        self._held += text
        found: list[Piece] = []
        while self._held:
            more, going = self._body() if self._header is None else self._head()
            found += more
            if not going:
                break
        return found

    def end(self) -> list[Piece]:
        held, self._held = self._held, ""
        return [self._kind(held)] if held and self._header is None else []

    def _body(self) -> tuple[list[Piece], bool]:
        before, tag, self._held = cut(self._held, [CHANNEL, START, *ENDS])
        found: list[Piece] = [self._kind(before)] if before else []
        if tag in (CHANNEL, START):
            self._header = ""
        elif tag is not None:
            self._kind = Content
        return found, tag is not None

    def _head(self) -> tuple[list[Piece], bool]:
        assert self._header is not None
        before, tag, self._held = cut(self._held, [MESSAGE])
        self._header += before
        if tag is None:
            return [], False
        header, self._header = self._header, None
        to = _TO.search(header)
        if to:
            self._kind = Arguments
            return [Call(to[1])], True
        self._kind = Reasoning if "analysis" in header else Content
        return [], True
