"""Finds out what a reader of `Fields` reads, by letting it read: a JSON schema of its bodies.

A `Probe` answers every question with something plausible and writes down what was asked. Where a
reader may go on in different ways (a field is there or not, a choice is one or the other) it is run
again for each. A refusal ends a way: such bodies are not accepted. Nothing here knows a route.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tinkex.server.protocol.fields import _MISSING, Fields
from tinkex.server.refusals import Refusal

Schema: TypeAlias = dict[str, Any]
Reader: TypeAlias = Callable[[Fields], object]


class _Read(Exception):
    """The reader has asked for everything it knows."""


@dataclass
class _Story:
    """One way through a reader: the decisions to take, and those taken beyond them."""

    taken: tuple[int, ...]
    options: list[int] = field(default_factory=list)

    def decide(self, options: int) -> int:
        place = len(self.options)
        self.options.append(options)
        if place == len(self.taken):
            self.taken = (*self.taken, 0)
        return self.taken[place]

    def others(self, known: int) -> Iterator[tuple[int, ...]]:
        """The ways that part from this one after its first `known` decisions."""
        for place in range(known, len(self.options)):
            for other in range(1, self.options[place]):
                yield (*self.taken[:place], other)


@dataclass(frozen=True)
class _Object:
    """What one way of reading asks of an object: (schema, whether it must be there) by name."""

    fields: Mapping[str, tuple[Schema, bool]]
    closed: bool

    def schema(self) -> Schema:
        shown = {
            name: found if required else _or_null(found)
            for name, (found, required) in self.fields.items()
        }
        schema: Schema = {"type": "object", "properties": {**shown}}
        if self.closed:
            schema["properties"].setdefault("type", {})
            schema["additionalProperties"] = False
        required = [name for name, (_, needed) in self.fields.items() if needed]
        return {**schema, "required": required} if required else schema


class Probe(Fields):
    """Fields nobody sent. What is read of them is `found`."""

    def __init__(self, story: _Story, is_root: bool = True) -> None:
        super().__init__({})
        self._story = story
        self._is_root = is_root
        self._there: dict[str, bool] = {}
        self._asked: dict[str, tuple[Schema | Probe, bool, Callable[[Schema], Schema]]] = {}
        self._closed = False

    @property
    def found(self) -> _Object:
        fields = {
            name: (shape(asked.found.schema() if isinstance(asked, Probe) else asked), required)
            for name, (asked, required, shape) in self._asked.items()
        }
        return _Object(fields, self._closed)

    # ---- scalars

    def text(self, name: str, *, limit: int = 4096) -> str:
        self._note(name, {"type": "string", "maxLength": limit}, True)
        return "x"

    def optional_text(self, name: str, *, limit: int = 4096) -> str | None:
        return "x" if self._note(name, {"type": "string", "maxLength": limit}) else None

    def integer(self, name: str, *, low: int, high: int, default: int | None = _MISSING) -> int:
        wanted = None if default is _MISSING else default
        self._note(name, _bounded("integer", low, high), wanted is None)
        return low if wanted is None else wanted

    def optional_integer(self, name: str, *, low: int, high: int) -> int | None:
        self._note(name, _bounded("integer", low, high))
        return None

    def number(
        self, name: str, *, low: float, high: float = math.inf, default: float | None = None
    ) -> float:
        self._note(name, _bounded("number", low, high), default is None)
        return max(low, 0.0) if default is None else default

    def flag(self, name: str, default: bool | None = None) -> bool:
        self._note(name, {"type": "boolean"}, default is None)
        return bool(default)

    def optional_flag(self, name: str) -> bool | None:
        self._note(name, {"type": "boolean"})
        return None

    def choice(self, name: str, options: Sequence[str], default: str | None = None) -> str:
        chosen = options[self._story.decide(len(options))]
        self._note(name, {"enum": [chosen]}, default is None or chosen != default)
        return chosen

    def choices(self, name: str, options: Sequence[str]) -> list[str] | None:
        self._note(name, _list_of({"enum": list(options)}, len(options)))
        return None

    def moment(self, name: str) -> datetime:
        self._note(name, {"type": "string", "format": "date-time", "maxLength": 64}, True)
        return datetime.now(UTC)

    # ---- what holds others

    def mapping(self, name: str, *, limit_bytes: int = 16 * 1024) -> dict[str, Any] | None:
        self._note(name, {"type": "object"})
        return None

    def items(self, name: str, *, limit: int) -> list[Any] | None:
        self._note(name, {"type": "array", "maxItems": limit})
        return None

    def texts(self, name: str, *, limit: int) -> list[str] | None:
        self._note(name, _list_of({"type": "string"}, limit))
        return ["x"]

    def integers(self, name: str, *, low: int, high: int, limit: int) -> NDArray[np.int64] | None:
        self._note(name, _list_of(_bounded("integer", low, high), limit))
        return np.full(1, low, dtype=np.int64)

    def objects(self, name: str, *, limit: int) -> list[Fields] | None:
        child = Probe(self._story, is_root=False)
        self._note(name, child, shape=lambda found: _list_of(found, limit))
        return [child]

    def nested(self, name: str) -> Fields | None:
        if not self.has(name):
            return None
        child = Probe(self._story, is_root=False)
        self._note(name, child, True)
        return child

    # ---- ways

    def has(self, name: str) -> bool:
        if name not in self._there:
            self._there[name] = not self._story.decide(2)
        return self._there[name]

    def raw(self, name: str) -> Any:
        self._note(name, {})
        return None

    def finish(self) -> None:
        self._closed = True
        if self._is_root:
            raise _Read

    def _note(
        self,
        name: str,
        asked: Schema | Probe,
        required: bool = False,
        shape: Callable[[Schema], Schema] = lambda found: found,
    ) -> bool:
        """Write down a question; whether the field is there in this story."""
        there = self._there.get(name, True)
        if required and not there:
            raise Refusal(f"{name} is required")
        if there and name not in self._asked:
            self._asked[name] = (asked, required or name in self._there, shape)
        return there


def describe(read: Reader) -> Schema:
    """The JSON schema of the bodies that `read` accepts."""
    found = _merged(list(_ways(read)))
    schemas = [each.schema() for each in found]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _ways(read: Reader) -> Iterator[_Object]:
    waiting: list[tuple[int, ...]] = [()]
    while waiting:
        known = waiting.pop()
        story = _Story(known)
        probe = Probe(story)
        try:
            read(probe)
            yield probe.found
        except _Read:
            yield probe.found
        except Refusal:
            pass
        waiting += story.others(len(known))


def _merged(found: list[_Object]) -> list[_Object]:
    """Ways that differ in one field only, as one: the field is optional, or of either kind."""
    for index, one in enumerate(found):
        for other in found[index + 1 :]:
            both = _joined(one, other)
            if both is not None:
                rest = [each for each in found if each is not one and each is not other]
                return _merged([both, *rest])
    return found


def _joined(one: _Object, other: _Object) -> _Object | None:
    names = [*one.fields, *(name for name in other.fields if name not in one.fields)]
    differ = [name for name in names if one.fields.get(name) != other.fields.get(name)]
    if one.closed != other.closed or len(differ) > 1:
        return None
    fields = {name: _either(one.fields.get(name), other.fields.get(name)) for name in names}
    return _Object(fields, one.closed)


def _either(
    one: tuple[Schema, bool] | None, other: tuple[Schema, bool] | None
) -> tuple[Schema, bool]:
    if one is None or other is None:
        found = one or other
        assert found is not None
        return found[0], False
    return _any_of(one[0], other[0]), one[1] and other[1]


def _any_of(one: Schema, other: Schema) -> Schema:
    if one == other:
        return one
    if one.keys() == other.keys() == {"enum"}:
        return {"enum": sorted({*one["enum"], *other["enum"]})}
    parts: list[Schema] = []
    for schema in (one, other):
        parts += [each for each in schema.get("anyOf", [schema]) if each not in parts]
    return {"anyOf": parts}


def _or_null(schema: Schema) -> Schema:
    """A field that is null counts as absent."""
    return schema if not schema else _any_of(schema, {"type": "null"})


def _list_of(schema: Schema, limit: int) -> Schema:
    return {"type": "array", "items": schema, "maxItems": limit}


def _bounded(kind: str, low: float, high: float) -> Schema:
    schema: Schema = {"type": kind}
    if math.isfinite(low):
        schema["minimum"] = low
    if math.isfinite(high):
        schema["maximum"] = high
    return schema
