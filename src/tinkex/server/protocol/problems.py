"""Turns pydantic's errors about a request into a sentence: the field, the value, the limit.

A number is shown. Any other value is described by its kind or size, because it could be a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from pydantic import ValidationError

from tinkex.server.protocol.json_body import kind_of
from tinkex.server.refusals import Refusal

Place: TypeAlias = tuple[str | int, ...]

_NAME_SHOWN = 128


def refusal(error: ValidationError, values: Mapping[str, Any]) -> Refusal:
    """A refusal with the first thing that is wrong with `values`."""
    found: Any = error.errors(include_url=False)[0]
    return Refusal(f"{shown(place(found, values))} {sentence(found)}")


def sentence(found: Mapping[str, Any]) -> str:
    """What one of pydantic's errors says is wrong."""
    said = _SENTENCES.get(found["type"], _as_it_is)
    return said(found["input"], found)


def unknown(place: Place, name: str, known: Iterable[str]) -> Refusal:
    """A field that the request does not have: fields are honoured or refused, never ignored."""
    names = ", ".join(sorted(known))
    return Refusal(f"{shown((*place, name))} is not a field of this request; known are: {names}")


def not_a_number(place: Place, name: str) -> Refusal:
    """A null where only a number can stand."""
    return Refusal(
        f"{shown((*place, name))} is null, as NaN and infinity are written: give a finite number, "
        "or leave it out"
    )


def shown(place: Place) -> str:
    """`prompt.chunks[0].tokens`"""
    path = ""
    for part in place:
        path += f"[{part}]" if isinstance(part, int) else f".{part[:_NAME_SHOWN]}"
    return path.removeprefix(".") or "the body"


def place(found: Mapping[str, Any], values: Any) -> Place:
    """Where the values are wrong. pydantic's own path also names the branches of a union, which
    are no part of the body: those are left out."""
    steps: list[str | int] = []
    for part in found["loc"]:
        if _has(values, part):
            values = values[part]
        elif found["type"] != "missing" or part != found["loc"][-1]:
            continue
        steps.append(part)
    by_type = found["type"].startswith("union_tag") and isinstance(found["input"], dict)
    return (*steps, "type") if by_type else tuple(steps)


def _has(values: Any, part: str | int) -> bool:
    if isinstance(values, list):
        return isinstance(part, int) and part < len(values)
    return isinstance(values, dict) and part in values


def _kind(wanted: str) -> Callable[[Any, Mapping[str, Any]], str]:
    return lambda value, found: f"must be {wanted}, not {kind_of(value)}"


def _bound(words: str, name: str) -> Callable[[Any, Mapping[str, Any]], str]:
    return lambda value, found: f"is {_number(value)}; it must be {words} {found['ctx'][name]}"


def _number(value: Any) -> str:
    """A short number as it is, a long one by its size."""
    text = str(value)
    return text if len(text) <= 40 else f"a number of {len(text)} digits"


def _float(value: Any, found: Mapping[str, Any]) -> str:
    if type(value) is int:
        return f"is {_number(value)}, too large for a number"
    return _kind("a number")(value, found)


def _too_long(value: Any, found: Mapping[str, Any]) -> str:
    entries = "characters" if isinstance(value, str) else "entries"
    return f"has {len(value)} {entries}; the limit is {found['ctx']['max_length']}"


def _too_short(value: Any, found: Mapping[str, Any]) -> str:
    entries = "characters" if isinstance(value, str) else "entries"
    return f"has {len(value)} {entries}; it needs at least {found['ctx']['min_length']}"


def _one_of(value: Any, found: Mapping[str, Any]) -> str:
    context = found["ctx"]
    options = context.get("expected") or context["expected_tags"]
    return f"must be one of {options.replace(chr(39), '')}"


def _unmatched(value: Any, found: Mapping[str, Any]) -> str:
    return f"must match {found['ctx']['pattern']}"


def _untagged(value: Any, found: Mapping[str, Any]) -> str:
    return "is required" if isinstance(value, dict) else _kind("an object")(value, found)


def _said(value: Any, found: Mapping[str, Any]) -> str:
    return str(found["ctx"]["error"])


def _as_it_is(value: Any, found: Mapping[str, Any]) -> str:
    return f"is not as it should be: {found['msg']}"


_SENTENCES: dict[str, Callable[[Any, Mapping[str, Any]], str]] = {
    "missing": lambda value, found: "is required",
    "extra_forbidden": lambda value, found: "is not a field of this request",
    "string_type": _kind("a string"),
    "int_type": _kind("an integer"),
    "float_type": _float,
    "bool_type": _kind("true or false"),
    "list_type": _kind("a list"),
    "dict_type": _kind("an object"),
    "model_type": _kind("an object"),
    "model_attributes_type": _kind("an object"),
    "greater_than_equal": _bound("at least", "ge"),
    "greater_than": _bound("above", "gt"),
    "less_than_equal": _bound("at most", "le"),
    "less_than": _bound("below", "lt"),
    "string_too_long": _too_long,
    "too_long": _too_long,
    "string_too_short": _too_short,
    "too_short": _too_short,
    "string_pattern_mismatch": _unmatched,
    "literal_error": _one_of,
    "union_tag_invalid": _one_of,
    "union_tag_not_found": _untagged,
    "value_error": _said,
}
