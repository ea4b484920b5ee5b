"""Requests as declared types: every field of an API is honoured, a label, or refused by name.

Nothing a client sends is ignored: a name that is not declared is refused, and so is one that is
declared but not served, unless it asks for what happens anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from pydantic import (
    ConfigDict,
    GetJsonSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from tinkex.server.endpoints.errors import Unfit
from tinkex.server.endpoints.values import MEDIA, TEXT_ONLY
from tinkex.server.protocol import problems
from tinkex.server.protocol.json_body import parse
from tinkex.types.strictness import Strict

_NOT_SERVED = "not_served"
_MOST_FIELDS = 1024
"""Each unknown one is an error of its own, and only one is told."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A field of the API that is not served. `unless` are the values that ask for nothing."""

    why: str
    unless: tuple[Any, ...] = ()

    def allows(self, value: Any) -> bool:
        return any(value == fine and type(value) is type(fine) for fine in self.unless)


class Declared(Strict):
    """An object of a request. `refused` are the fields of the API that are not served here,
    `labels` those that name or sort things for a provider and cannot change an answer."""

    model_config = ConfigDict(strict=True)

    refused: ClassVar[Mapping[str, Refused]] = {}
    labels: ClassVar[Sequence[str]] = ()

    @classmethod
    def read(cls, body: bytes) -> Self:
        """A body, checked; raises `Unfit` with the field that is wrong."""
        values = parse(body)
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise _unfit(error, values) from None

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Labels may be anything, refused fields what asks for nothing."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        allowed = {name: {"enum": list(it.unless)} for name, it in cls.refused.items() if it.unless}
        schema["properties"] |= {**{name: {} for name in cls.labels}, **allowed}
        return schema

    @model_validator(mode="before")
    @classmethod
    def _served(cls, values: Any) -> Any:
        """What is declared here: without nulls, which ask for nothing, and without labels."""
        if not isinstance(values, dict):
            return values
        if len(values) > _MOST_FIELDS:
            raise ValueError(f"has {len(values)} fields; the limit is {_MOST_FIELDS}")
        given = {name: value for name, value in values.items() if value is not None}
        for name in given.keys() & cls.refused.keys():
            if not cls.refused[name].allows(given[name]):
                raise PydanticCustomError(
                    _NOT_SERVED, "{name}: {why}", {"name": name, "why": cls.refused[name].why}
                )
        dropped = {*cls.labels, *cls.refused}
        return {name: value for name, value in given.items() if name not in dropped}


def _unfit(error: ValidationError, values: Mapping[str, Any]) -> Unfit:
    """Of all that is wrong, what lies deepest: where several forms are allowed, the one meant. Of
    two at one place, the one whose kind is right."""
    errors: list[Any] = error.errors(include_url=False)

    def meant(each: Any) -> tuple[int, bool]:
        return len(problems.place(each, values)), not each["type"].endswith("_type")

    found = max(errors, key=meant)
    place, sentence = problems.place(found, values), problems.sentence(found)
    if found["type"] == _NOT_SERVED:
        place = (*place, found["ctx"]["name"])
        sentence = f"is not served here: {found['ctx']['why']}"
    if (media := _media(place, values)) is not None:
        sentence = f"is {media!r}, which is not served here: {TEXT_ONLY}"
    param = problems.shown(place)
    return Unfit(f"{param} {sentence}", param)


def _media(place: problems.Place, values: Any) -> str | None:
    """What kind of part a message has there, if that is what is wrong with it."""
    if place[-1:] != ("type",):
        return None
    try:
        for step in place:
            values = values[step]
    except (KeyError, TypeError):  # there is no type
        return None
    return values if isinstance(values, str) and values in MEDIA else None
