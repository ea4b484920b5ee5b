"""Tool calls in the XML style of Qwen3-Coder and Qwen3.5.

    <tool_call>
    <function=add>
    <parameter=a>
    1
    </parameter>
    </function>
    </tool_call>

Values are bare text: what a tool's schema does not call a string is read as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tinkex.text.formats.pieces import Arguments, Call, Content, Piece
from tinkex.text.formats.tags import cut

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"


class XmlCalls:
    """`tools` maps names to JSON schemas of their parameters."""

    def __init__(self, tools: Mapping[str, Mapping[str, Any]]) -> None:
        self._tools = tools
        self._held = ""
        self._state = self._content
        self._name = self._key = ""
        self._given = 0

    def add(self, text: str) -> list[Piece]:
        self._held += text
        found: list[Piece] = []
        while self._held:
            more, going = self._state()
            found += more
            if not going:
                break
        return found

    def end(self) -> list[Piece]:
        held, self._held = self._held, ""
        if self._state == self._content:
            return [Content(held)] if held else []
        if self._state == self._parameter:
            return self._ended()
        if self._state == self._value:
            return [*self._argument(held), *self._ended()]
        return []

    def _content(self) -> tuple[list[Piece], bool]:
        before, tag, after = cut(self._held, [_OPEN, _FUNCTION])
        kept = before.rstrip("\n")
        self._held = after if tag else before[len(kept) :] + after
        if tag == _OPEN:
            self._state = self._function
        elif tag == _FUNCTION:
            self._state = self._function_name
        return [Content(kept)] if kept else [], tag is not None

    def _function(self) -> tuple[list[Piece], bool]:
        _, tag, self._held = cut(self._held, [_FUNCTION, _CLOSE])
        if tag == _FUNCTION:
            self._state = self._function_name
        elif tag == _CLOSE:
            self._state = self._content
            self._held = self._held.lstrip("\n")
        return [], tag is not None

    def _function_name(self) -> tuple[list[Piece], bool]:
        name, tag, rest = cut(self._held, [">"])
        if tag is None:
            return [], False
        self._name, self._held, self._given = name.strip(), rest, 0
        self._state = self._parameter
        return [Call(self._name)], True

    def _parameter(self) -> tuple[list[Piece], bool]:
        _, tag, rest = cut(self._held, [_PARAMETER, _FUNCTION_END])
        if tag is None:
            return [], False
        if tag == _FUNCTION_END:
            self._held, self._state = rest, self._function
            return self._ended(), True
        key, closed, after = cut(rest, [">"])
        if closed is None:
            return [], False
        self._key, self._held, self._state = key.strip(), after, self._value
        return [], True

    def _value(self) -> tuple[list[Piece], bool]:
        value, tag, rest = cut(self._held, [_PARAMETER_END])
        if tag is None:
            return [], False
        self._held, self._state = rest, self._parameter
        return self._argument(value), True

    def _argument(self, text: str) -> list[Piece]:
        value = text.removeprefix("\n").removesuffix("\n")
        head = "{" if not self._given else ", "
        self._given += 1
        known = json.dumps(self._read(value), ensure_ascii=False)
        return [Arguments(f"{head}{json.dumps(self._key, ensure_ascii=False)}: {known}")]

    def _read(self, value: str) -> Any:
        properties = self._tools.get(self._name, {}).get("properties")
        schema = properties.get(self._key) if isinstance(properties, dict) else None
        if isinstance(schema, dict) and schema.get("type") == "string":
            return value
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value

    def _ended(self) -> list[Piece]:
        self._state = self._function
        return [Arguments("}" if self._given else "{}")]
