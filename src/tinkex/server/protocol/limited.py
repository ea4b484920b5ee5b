"""Adds a server's limits to a request type of the protocol: the same fields, each bounded.

`tinkex.types` says once which fields a request has, of which kind and with which default. A server
adds how much of each it accepts, which optional fields it requires, and which it can do without.
`limited` makes one type of both; nothing is declared twice.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen
from pydantic import BaseModel, BeforeValidator, Discriminator, FailFast, create_model
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

TEXT_LIMIT = 4096
"""Characters of a text that has no limit of its own."""
ENTRIES_LIMIT = 100_000
OBJECT_BYTES = 16 * 1024
"""An object with any content, as JSON."""
FAR = 2**63 - 1

_Model = TypeVar("_Model", bound=BaseModel)
_AS_DECLARED: Any = object()


@dataclass(frozen=True)
class Limit:
    """What a server asks of a field beyond its type: `checks` are pydantic's annotations."""

    checks: tuple[Any, ...] = ()
    default: Any = _AS_DECLARED

    def __or__(self, other: Limit) -> Limit:
        default = self.default if other.default is _AS_DECLARED else other.default
        return Limit(self.checks + other.checks, default)


REQUIRED = Limit(default=...)
"""Required by the server though the type does not require it."""


def otherwise(value: Any) -> Limit:
    """Not required by the server though the type requires it: if it is missing the server uses
    `value`."""
    return Limit(default=value)


def between(low: float, high: float) -> Limit:
    return Limit((Ge(low), Le(high)))


def at_least(low: float) -> Limit:
    return Limit((Ge(low),))


def below(high: float) -> Limit:
    return Limit((Lt(high),))


def at_most(length: int) -> Limit:
    """Characters of a text, entries of a list."""
    return Limit((MaxLen(length),))


def within_bytes(limit: int) -> Limit:
    """An object or list of anything, written as JSON."""

    def check(value: Any) -> Any:
        size = len(json.dumps(value))
        if size > limit:
            raise ValueError(f"takes {size} bytes as JSON; the limit is {limit}")
        return value

    return Limit((BeforeValidator(check),))


def read_by(check: Callable[[Any], Any]) -> Limit:
    """Looked at by a function before the type sees it; a ValueError is a refusal."""
    return Limit((BeforeValidator(check),))


_NESTED: dict[type[BaseModel], Mapping[str, Limit]] = {}
"""What was said of a type, for wherever it lies within another."""


def limited(kind: type[_Model], **limits: Limit) -> Callable[[], type[_Model]]:
    """Makes `kind` with this server's limits, when it is first needed. Nested types are limited
    too, by their own `limited` or `nested`, or else by the limits above."""
    _check_names(kind, limits)
    if limits:
        _NESTED.setdefault(kind, limits)
    return cache(lambda: _made(kind, limits))


def nested(kind: type[BaseModel], **limits: Limit) -> None:
    """Sets the limits of `kind` wherever it is nested in a request."""
    _check_names(kind, limits)
    _NESTED[kind] = limits


def _check_names(kind: type[BaseModel], limits: Mapping[str, Limit]) -> None:
    unknown = limits.keys() - kind.model_fields.keys()
    assert not unknown, f"{kind.__name__} has no fields {unknown}"


def _made(kind: type[_Model], limits: Mapping[str, Limit]) -> type[_Model]:
    fields: Any = {
        name: _field(field, limits.get(name, Limit())) for name, field in kind.model_fields.items()
    }
    return create_model(kind.__name__, __base__=kind, __doc__=kind.__doc__, **fields)


@cache
def _within(kind: type[BaseModel]) -> type[BaseModel]:
    return _made(kind, _NESTED.get(kind, {}))


def _field(field: FieldInfo, limit: Limit) -> tuple[Any, FieldInfo]:
    declared = copy.copy(field)
    if limit.default is not _AS_DECLARED:
        declared.default = PydanticUndefined if limit.default is ... else limit.default
    kind = _bounded(field.annotation, (*field.metadata, *limit.checks), field.discriminator is None)
    return (Annotated[(kind, *limit.checks)] if limit.checks else kind), declared


def _bounded(kind: Any, said: tuple[Any, ...] = (), is_untold: bool = True) -> Any:
    """A type with the limits that hold where nothing else is `said`."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return _within(kind)
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return Annotated[(_bounded(parts[0], (*said, *_flat(parts[1:]))), *parts[1:])]
    if origin in (Union, UnionType):
        union: Any = Union.__getitem__(tuple(_bounded(part, said) for part in parts))
        tells = is_untold and _tell_their_type(parts)
        return Annotated[union, Discriminator("type")] if tells else union
    if origin is list:
        kind = Annotated[list.__class_getitem__(_bounded(parts[0])), FIRST_ONLY]
    checks = tuple(
        check for kinds, check in _DEFAULTS.get(origin or kind, ()) if not _any(kinds, said)
    )
    return Annotated[(kind, *checks)] if checks else kind


def _flat(said: tuple[Any, ...]) -> tuple[Any, ...]:
    """Annotations, with those that a `Field` holds."""
    held = (each.metadata if isinstance(each, FieldInfo) else [each] for each in said)
    return tuple(check for checks in held for check in checks)


def _any(kinds: tuple[type, ...], said: tuple[Any, ...]) -> bool:
    return any(isinstance(check, kinds) for check in said)


def _tell_their_type(kinds: tuple[Any, ...]) -> bool:
    """Whether an object's `type` says which of the kinds it is: an error is then about that one."""
    return all(
        isinstance(kind, type) and issubclass(kind, BaseModel) and "type" in kind.model_fields
        for kind in kinds
    )


class _FirstOnly(FailFast):
    """One error of a list will do. Unlike its base, it can stand in a union."""

    __hash__ = object.__hash__


FIRST_ONLY = _FirstOnly()
_DEFAULTS: dict[Any, tuple[tuple[tuple[type, ...], Any], ...]] = {
    str: (((MaxLen, BeforeValidator), MaxLen(TEXT_LIMIT)),),
    list: (((MaxLen, BeforeValidator), MaxLen(ENTRIES_LIMIT)),),
    dict: (((BeforeValidator,), within_bytes(OBJECT_BYTES).checks[0]),),
    int: (((Ge, Gt), Ge(-FAR - 1)), ((Le, Lt), Le(FAR))),
}
"""Kind -> checks, each with what makes it needless."""
