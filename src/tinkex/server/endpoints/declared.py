"""Requests as declared types: every field of an API is honoured, a label, or refused by name.

A field that is null counts as absent, as these APIs have it. Nothing a client sends is ignored: a
name that is not declared is refused, and so is one that is declared but not served, unless it asks
for what happens anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from tinkex.server.endpoints.errors import Unfit
from tinkex.server.protocol.fields import Fields


@dataclass(frozen=True, slots=True)
class Refused:
    """A field of the API that is not served. `unless` are the values that ask for nothing."""

    why: str
    unless: tuple[Any, ...] = ()


class Declared(BaseModel):
    """A request's body. `refused` are the fields of the API that are not served here, `labels`
    those that name or sort a request for its provider and cannot change an answer."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())

    refused: ClassVar[Mapping[str, Refused]] = {}
    labels: ClassVar[Sequence[str]] = ()

    @classmethod
    def read(cls, body: bytes) -> Self:
        """A body, checked; raises `Unfit` with the field that is wrong."""
        values = Fields.parse(body).given()
        for name in [name for name in values if name in cls.labels]:
            del values[name]
        for name in [name for name in values if name in cls.refused]:
            cls._refuse(name, values.pop(name))
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise _unfit(values, error) from None

    @classmethod
    def _refuse(cls, name: str, value: Any) -> None:
        refused = cls.refused[name]
        if not any(value == fine and type(value) is type(fine) for fine in refused.unless):
            raise Unfit(f"{name} is not served here: {refused.why}", param=name)


def _unfit(values: Any, error: ValidationError) -> Unfit:
    """Of all that is wrong, what lies deepest: where several forms are allowed, the one meant."""
    found = error.errors(include_url=False, include_context=False)
    first = max(found, key=lambda each: len(_steps(values, each["loc"])))
    steps = _steps(values, first["loc"])
    if first["type"] == "missing":
        steps.append(first["loc"][-1])
    param = "".join(f"[{step}]" if isinstance(step, int) else f".{step[:128]}" for step in steps)
    return Unfit(f"{param[1:]} {_why(first)}", param=param[1:])


def _why(error: Any) -> str:
    match error["type"]:
        case "extra_forbidden":
            return "is not a field of this request"
        case "missing":
            return "is required"
    return str(error["msg"]).removeprefix("Value error, ").removeprefix("Input ")


def _steps(values: Any, location: Sequence[int | str]) -> list[int | str]:
    """A location without the names of the types that were tried: only what leads to a value."""
    steps: list[int | str] = []
    for step in location:
        try:
            values = values[step]
        except (LookupError, TypeError):
            continue
        steps.append(step)
    return steps
