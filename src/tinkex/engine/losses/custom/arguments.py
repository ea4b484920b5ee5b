"""The arguments of a traced loss's nodes, from JSON to templates with places for values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinkex.engine.losses.custom.operations import DTYPES, Here

MAX_WHOLE = 1 << 53
MAX_ITEMS = 256
MAX_DEPTH = 8
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Ref:
    """Stands for an earlier node's value."""

    name: str


class Wrong(Exception):
    """What is wrong with a node; `Graph` says which node it is."""


def decode(value: Any, known: set[str], depth: int) -> Any:
    """A graph's argument as a template: numbers, texts, tuples, and `Ref` for other nodes."""
    if depth > MAX_DEPTH:
        raise Wrong(f"arguments are nested deeper than {MAX_DEPTH}")
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)):
        if not is_small(value):
            raise Wrong(f"a whole number lies beyond ±{MAX_WHOLE}")
        return value
    if isinstance(value, (list, tuple)):
        _check_length(value)
        return [decode(item, known, depth + 1) for item in value]
    if isinstance(value, Mapping) and len(value) == 1:
        ((kind, inner),) = value.items()
        return _decode_special(kind, inner, known, depth)
    raise Wrong(f"an argument of type {kind_of(value)} is not understood")


def _decode_special(kind: Any, inner: Any, known: set[str], depth: int) -> Any:
    if kind == "ref":
        return _reference(inner, known)
    if kind == "tuple" and isinstance(inner, (list, tuple)):
        return tuple(decode(inner, known, depth + 1))
    if kind == "slice" and isinstance(inner, (list, tuple)) and len(inner) == 3:
        return slice(*decode(inner, known, depth + 1))
    if kind == "dict" and isinstance(inner, Mapping):
        _check_length(inner)
        return {str(key): decode(item, known, depth + 1) for key, item in inner.items()}
    if kind == "float" and inner in ("inf", "-inf", "nan"):
        return float(inner)
    if kind == "dtype" and str(inner).removeprefix("torch.") in DTYPES:
        return DTYPES[str(inner).removeprefix("torch.")]
    if kind == "ellipsis":
        return ...
    if kind == "device":
        return Here()
    if kind in ("layout", "memory_format"):
        return None
    raise Wrong(f"an argument of kind {shown(kind)} holding {kind_of(inner)} is not understood")


def _reference(name: Any, known: set[str]) -> Ref:
    if not isinstance(name, str):
        raise Wrong(f"a ref must be the name of an earlier node, not {kind_of(name)}")
    if name not in known:
        raise Wrong(f"it uses {shown(name)}, which is no earlier node")
    return Ref(name)


def _check_length(value: Sequence[Any] | Mapping[Any, Any]) -> None:
    if len(value) > MAX_ITEMS:
        raise Wrong(f"a list of {len(value)} is over the limit of {MAX_ITEMS}")


def is_small(value: int | float) -> bool:
    return isinstance(value, float) or abs(value) <= MAX_WHOLE


def shown(text: object) -> str:
    """A name somebody sent, short enough for a message."""
    return repr(str(text)[:_SHOWN])


def kind_of(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
