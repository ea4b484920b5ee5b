"""A JSON body as values, or a refusal: nothing that could not be stored or said again in JSON."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from tinkex.server.refusals import Refusal

_HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")
"""An escape that may be half of a character: only together with its other half can it be stored."""


def parse(body: bytes) -> dict[str, Any]:
    """A request body that must be one JSON object; an empty one asks for nothing."""
    try:
        text = body.decode() or "{}"
        values = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        if _HALF_CHARACTER.search(text):
            json.dumps(values, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise Refusal(f"the body is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise Refusal(f"the body must be a JSON object, not {kind_of(values)}")
    return values


def kind_of(value: Any) -> str:
    """What a JSON value is, for a person."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    return names.get(type(value), "null" if value is None else "a number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is too large for a number")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
