"""Reads JSON requests as the types the protocol declares, and describes what it reads.

A field that is null counts as absent, unless it is a number that may have a fraction: clients write
NaN as null, and no default may stand for that. One that the type does not have is refused by name.
Kinds are exact: a number is no text, a flag no number. The JSON schema of a body comes from the
same type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, get_args

from pydantic import AliasChoices, BaseModel, ValidationError
from pydantic.fields import FieldInfo

from tinkex.server.protocol import problems
from tinkex.server.protocol.json_body import parse
from tinkex.server.refusals import Refusal

Schema: TypeAlias = dict[str, Any]
T = TypeVar("T", bound=BaseModel)


class Reader(Generic[T]):
    """Turns values or bodies into requests; `Refusal` names the wrong field. `kind` makes the type
    at the first one. `without` are fields of the type that may not be given here, and why. An open
    reader ignores fields that the type does not have."""

    def __init__(
        self,
        kind: Callable[[], type[T]],
        *,
        without: Mapping[str, str] = MappingProxyType({}),
        is_open: bool = False,
    ) -> None:
        self._make = kind
        self._without = without
        self._is_open = is_open

    @cached_property
    def _kind(self) -> type[T]:
        return self._make()

    @cached_property
    def _validate(self) -> Callable[..., Any]:
        return self._kind.__pydantic_validator__.validate_python

    @cached_property
    def _shape(self) -> _Shape:
        return _shape((self._kind,))

    def parse(self, body: bytes) -> T:
        return self.read(parse(body))

    def read(self, values: Mapping[str, Any]) -> T:
        for name, why in self._without.items():
            if values.get(name) is not None:
                raise Refusal(f"{name} {why}")
        if self._is_open:
            values = {name: values[name] for name in self._shape.names if name in values}
        given = self._shape.trimmed(values, ())
        try:
            request: T = self._validate(given, strict=True)
        except ValidationError as error:
            raise problems.refusal(error, given) from None
        return request

    def schema(self) -> Schema:
        """The JSON schema of accepted bodies, without references to elsewhere."""
        schema = self._kind.model_json_schema()
        definitions = schema.pop("$defs", {})
        for name in self._without:
            del schema["properties"][name]
        if self._is_open:
            del schema["additionalProperties"]
        inlined: Schema = _inlined(schema, definitions)
        return _by_any_name(self._kind, inlined)


class _Shape(NamedTuple):
    """Which fields the objects at one place may have, and what may be nested in them."""

    names: frozenset[str]
    numbers: frozenset[str]
    is_open: bool
    below: Mapping[str, _Shape]

    def trimmed(self, values: Mapping[str, Any], place: problems.Place) -> dict[str, Any]:
        """`values` without nulls; refuses unknown fields. Checked here and not by pydantic, which
        would create an error for each of a million."""
        kept = {name: value for name, value in values.items() if value is not None}
        if nulls := self.numbers & (values.keys() - kept.keys()):
            raise problems.not_a_number(place, min(nulls))
        if not self.is_open and not kept.keys() <= self.names:
            name = next(name for name in kept if name not in self.names)
            raise problems.unknown(place, name, self.names - {"type"})
        for name, shape in self.below.items():
            value = kept.get(name)
            if type(value) is dict:
                kept[name] = shape.trimmed(value, (*place, name))
            elif type(value) is list:
                kept[name] = [
                    shape.trimmed(each, (*place, name, index)) if type(each) is dict else each
                    for index, each in enumerate(value)
                ]
        return kept


def _shape(kinds: tuple[type[BaseModel], ...]) -> _Shape:
    below: dict[str, tuple[type[BaseModel], ...]] = {}
    numbers: set[str] = set()
    for kind in kinds:
        for declared, field in kind.model_fields.items():
            inner = tuple(_models(field.annotation))
            for name in _names(declared, field):
                below[name] = below.get(name, ()) + inner
                if field.annotation is float:
                    numbers.add(name)
    return _Shape(
        frozenset(below),
        frozenset(numbers),
        any(kind.model_config.get("extra") == "allow" for kind in kinds),
        {name: _shape(inner) for name, inner in below.items() if inner},
    )


def _names(declared: str, field: FieldInfo) -> tuple[str, ...]:
    """The names of a field in a body."""
    alias = field.validation_alias
    if isinstance(alias, AliasChoices):
        return tuple(str(choice) for choice in alias.choices)
    return (declared,)


def _models(kind: Any) -> Iterator[type[BaseModel]]:
    """The types of objects in an annotation, wherever in it they stand."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for part in get_args(kind):
        yield from _models(part)


def _by_any_name(kind: type[BaseModel], schema: Schema) -> Schema:
    """With every name of a field that has several; pydantic describes the first."""
    for declared, field in kind.model_fields.items():
        first, *others = _names(declared, field)
        if others:
            described, required = schema["properties"][first], schema["required"]
            properties = {**schema["properties"], **dict.fromkeys(others, described)}
            schema = {
                **schema,
                "properties": properties,
                "required": [name for name in required if name != first],
                "anyOf": [{"required": [name]} for name in (first, *others)],
            }
    return schema


def _inlined(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """A schema with its references put in place, and with null for what may be absent."""
    if isinstance(schema, list):
        return [_inlined(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    found = {
        "anyOf" if name == "oneOf" else name: _inlined(value, definitions)
        for name, value in schema.items()
        if name != "discriminator" and not (name == "title" and isinstance(value, str))
    }
    return _with_nulls(found) if isinstance(found.get("properties"), dict) else found


def _with_nulls(schema: Schema) -> Schema:
    """An object's schema that says that a null asks for nothing, whatever its name, except in
    the place of a number."""
    required = schema.get("required", [])
    properties = {
        name: value if name in required or value.get("type") == "number" else _or_null(value)
        for name, value in schema["properties"].items()
    }
    closed = schema.get("additionalProperties") is False
    others = {"additionalProperties": _NULL} if closed else {}
    return {**schema, "properties": properties, **others}


_NULL = {"type": "null"}
_ABOUT: tuple[str, ...] = ("default", "description")


def _or_null(schema: Schema) -> Schema:
    if _NULL in schema.get("anyOf", []):
        return schema
    kept = {name: schema[name] for name in _ABOUT if name in schema}
    inner = {name: value for name, value in schema.items() if name not in kept}
    return {"anyOf": [inner, _NULL], **kept}
