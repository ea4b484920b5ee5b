"""Keeps text that spells a special token in a message from becoming one.

A template writes special tokens around what people say. People must not be able to write them: a
message with `<|im_end|>` in it would end its own turn. So a mark is put inside each such spelling
before the template runs, the rendered text is cut at the marks, and the parts become tokens one by
one: the same characters, in ordinary tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from tinkex.text.errors import TokenizerError

_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
"""Code points that Unicode keeps for such uses: no text contains them."""


class Literals:
    """Marks the spellings of special tokens in the values of one conversation."""

    def __init__(self, special: Iterable[str]) -> None:
        names = sorted((name for name in special if len(name) > 1), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, names))) if names else None

    def mark(self, values: Any) -> tuple[Any, str]:
        """The values with marks in them, and the mark: one that the values do not contain."""
        said = "\n".join(_texts(values))
        mark = next((mark for mark in _MARKS if mark not in said), None)
        if mark is None:
            raise TokenizerError("the messages contain all code points from U+FDD0 to U+FDEF")
        if self._special is None or not self._special.search(said):
            return values, mark
        return self._marked(values, mark), mark

    def _marked(self, value: Any, mark: str) -> Any:
        if isinstance(value, str):
            assert self._special is not None
            return self._special.sub(lambda found: found[0][0] + mark + found[0][1:], value)
        if isinstance(value, list):
            return [self._marked(each, mark) for each in value]
        if isinstance(value, dict):
            return {self._marked(key, mark): self._marked(it, mark) for key, it in value.items()}
        return value


def _texts(values: Any) -> list[str]:
    """All of them, in no order; a generator that goes down by calls takes three times as long."""
    found, left = [], [values]
    while left:
        value = left.pop()
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, list):
            left += value
        elif isinstance(value, dict):
            left += value
            left += value.values()
    return found
