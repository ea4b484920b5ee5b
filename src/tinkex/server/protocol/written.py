"""Long answers as JSON text, piece by piece.

Python's own encoder lets nothing else in the process run until it has finished a value, which for
millions of logprobs takes seconds in any thread. A piece takes milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

_ENTRIES = 64
"""Of a long list that make a piece: a row of logprobs may have a thousand itself."""
_DEPTH = 5
"""Where the long lists of answers lie: choices, a choice, its logprobs, their rows."""


def written(values: Mapping[str, Any]) -> bytes:
    """Compact JSON, the same text as if it were written at once."""
    return "".join(_pieces(values, _DEPTH)).encode()


def _pieces(value: Any, depth: int) -> Iterator[str]:
    if depth and isinstance(value, dict) and value:
        yield from _object(value, depth - 1)
    elif depth and isinstance(value, list) and value:
        yield from _list(value, depth - 1)
    else:
        yield _text(value)


def _object(value: Mapping[str, Any], depth: int) -> Iterator[str]:
    before = "{"
    for name, each in value.items():
        yield f"{before}{_text(name)}:"
        yield from _pieces(each, depth)
        before = ","
    yield "}"


def _list(value: list[Any], depth: int) -> Iterator[str]:
    before = "["
    for start in range(0, len(value), _ENTRIES if len(value) > _ENTRIES else 1):
        yield before
        if len(value) > _ENTRIES:
            yield _text(value[start : start + _ENTRIES])[1:-1]
        else:
            yield from _pieces(value[start], depth)
        before = ","
    yield "]"


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
