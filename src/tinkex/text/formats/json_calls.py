"""Tool calls as JSON objects: between tags (Hermes, Qwen), or bare as the whole answer (Llama 3).

    <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>
    {"name": "add", "parameters": {"a": 1}}

The name is told as soon as it is there, the arguments as they are written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from tinkex.text.formats.pieces import Arguments, Call, Content, Piece
from tinkex.text.formats.tags import cut

OPEN, CLOSE = "<tool_call>", "</tool_call>"
PYTHON_TAG = "<|python_tag|>"
_HEAD = re.compile(
    r'\s*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"(?:name|function)"\s*:\s*"((?:[^"\\]|\\.)+)"\s*,'
    r'\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)


class JsonCall:
    """One call while it is written. `rest` is the text behind it once it is complete."""

    def __init__(self) -> None:
        self._text = ""
        self._sent = 0
        self._begun: int | None = None
        self._value = _Nesting()
        self.complete = False

    def add(self, text: str) -> list[Piece]:
        self._text += text
        found: list[Piece] = []
        if self._begun is None:
            head = _HEAD.match(self._text)
            if head is None:
                return []
            self._begun = self._sent = head.end()
            found.append(Call(json.loads(f'"{head[1]}"')))
        end = self._value.end(self._text, self._sent)
        part = self._text[self._sent : end]
        self._sent = end
        self.complete = self._value.closed
        return [*found, Arguments(part)] if part else found

    def whole(self) -> list[Piece] | None:
        """The pieces of a call that was not told while it was written; None if it is none."""
        if self._begun is not None:
            return []
        return calls(self._text)

    @property
    def text(self) -> str:
        return self._text


class _Nesting:
    """Where a JSON object ends."""

    def __init__(self) -> None:
        self._depth = 0
        self._string = self._escaped = False
        self.closed = False

    def end(self, text: str, start: int) -> int:
        """The end of what belongs to the object of the text from `start` on."""
        for place in range(start, len(text)):
            if self.closed:
                return place
            self._take(text[place])
        return len(text)

    def _take(self, character: str) -> None:
        if self._string:
            self._string = self._escaped or character != '"'
            self._escaped = character == "\\" and not self._escaped
        elif character == '"':
            self._string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            self.closed = not self._depth


def calls(text: str) -> list[Piece] | None:
    """The pieces of a complete call, or a list of them, in any order of its fields; None if the
    text is none."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    found: list[Piece] = []
    for value in values if isinstance(values, list) else [values]:
        call = _call(value)
        if call is None:
            return None
        found += call
    return found or None


def _call(value: Any) -> list[Piece] | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    given = value.get("arguments", value.get("parameters", {}))
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return [Call(value["name"]), Arguments(text)]


class TaggedCalls:
    """Content, and calls between tags."""

    def __init__(self) -> None:
        self._held = ""
        self._call: JsonCall | None = None

    def add(self, text: str) -> list[Piece]:
        self._held += text
        found: list[Piece] = []
        while self._held:
            more, going = self._content() if self._call is None else self._inside(self._call)
            found += more
            if not going:
                break
        return found

    def end(self) -> list[Piece]:
        held, call = self._held, self._call
        self._held, self._call = "", None
        if call is None:
            return [Content(held)] if held else []
        found = call.add(held)
        whole = call.whole()
        return [*found, *([Content(OPEN + call.text)] if whole is None else whole)]

    def _content(self) -> tuple[list[Piece], bool]:
        before, tag, after = cut(self._held, [OPEN])
        kept = before.rstrip("\n")  # line breaks before a call belong to it
        self._held = after if tag else before[len(kept) :] + after
        self._call = JsonCall() if tag else None
        return [Content(kept)] if kept else [], tag is not None

    def _inside(self, call: JsonCall) -> tuple[list[Piece], bool]:
        before, tag, self._held = cut(self._held, [CLOSE])
        found = call.add(before)
        if tag is None:
            return found, False
        self._call = None
        whole = call.whole()
        self._held = self._held.lstrip("\n")
        if whole is None:
            return [Content(OPEN + call.text + CLOSE)], True
        return [*found, *whole], True


class BareCalls:
    """An answer that is a call as a whole, or none at all."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._start: str | None = ""
        self._call: JsonCall | None = JsonCall()
        self._begun = False

    def add(self, text: str) -> list[Piece]:
        if self._start is not None:
            self._start += text
            if PYTHON_TAG.startswith(self._start) and self._start != PYTHON_TAG:
                return []
            text, self._start = self._start.removeprefix(PYTHON_TAG), None
        return self._after_start(text)

    def end(self) -> list[Piece]:
        said = self._after_start(self._start) if self._start else []
        if self._call is None or self._begun:
            return said
        whole = self._call.whole()
        if whole is not None and all(
            piece.name in self._names for piece in whole if isinstance(piece, Call)
        ):
            return whole
        return [*said, Content(self._call.text)] if self._call.text else said

    def _after_start(self, text: str) -> list[Piece]:
        if self._call is None:
            return [Content(text)] if text else []
        found = self._call.add(text)
        self._begun = self._begun or bool(found)
        start = self._call.text.lstrip()
        if self._begun or not start or start.startswith("{"):
            return found
        said, self._call = self._call.text, None
        return [Content(said)]
