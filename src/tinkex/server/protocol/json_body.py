"""Reads a JSON body into values; refuses what could not be stored or written as JSON again.

While one is read nothing else in this process runs, in any thread. So not only its bytes are
bounded but also its number of values: 16 MiB of empty lists would take five seconds.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from tinkex.server.refusals import Refusal, TooLarge

_HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")
"""An escape that may be half of a surrogate pair: it can be stored only together with its other
half."""


MOST_VALUES = 2 * 2**20
"""Values of all kinds: enough for the tokens of the longest prompts."""
MOST_PARTS = 256 * 2**10
"""Texts, lists and objects, each of which costs as much as a dozen numbers."""


def parse(body: bytes) -> dict[str, Any]:
    """A request body that must be one JSON object; an empty body is an empty object."""
    _check_size(body)
    try:
        text = body.decode() or "{}"
        values = _DECODER.decode(text)
        if _HALF_CHARACTER.search(text):
            json.dumps(values, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        # What Python would have its own program do about very long numbers is left out.
        raise Refusal(f"the body is not JSON: {str(error).partition('; use sys.')[0]}") from None
    if not isinstance(values, dict):
        raise Refusal(f"the body must be a JSON object, not {kind_of(values)}")
    return values


def _check_size(body: bytes) -> None:
    """Looks at what lies in texts only if there is so much that it matters."""
    if not _is_much(body):
        return
    bare = body.replace(rb"\\", b"").replace(rb"\"", b"")
    texts = bare.count(b'"') // 2
    if texts > MOST_PARTS or _is_much(b"".join(bare.split(b'"')[::2]), texts):
        raise TooLarge(
            f"the body has more than {MOST_VALUES} values, or more than {MOST_PARTS} texts, lists "
            "and objects, the limits: send less at once"
        )


def _is_much(body: bytes, texts: int | None = None) -> bool:
    if len(body) <= MOST_PARTS:
        return False
    texts = body.count(b'"') // 2 if texts is None else texts
    parts = texts + body.count(b"[") + body.count(b"{")
    return parts > MOST_PARTS or body.count(b",") > MOST_VALUES


def kind_of(value: Any) -> str:
    """The kind of a JSON value, for a person."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    return names.get(type(value), "null" if value is None else "a number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is too large for a number")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant)
"""Made once: `json.loads` makes one for each call that has rules of its own."""
