"""Reads the fields of a JSON request by name and kind, and refuses what nobody asked for.

Every accessor names the field, what came and what is wanted. `finish` refuses fields that were
never read: a field a client sends is honoured or refused, never ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from tinkex.server.refusals import Refusal

_MISSING: Any = object()


class Fields:
    """A JSON object being read. A field that is null counts as absent."""

    def __init__(self, values: Mapping[str, Any], where: str = "") -> None:
        self._values = values
        self._where = where
        self._seen: set[str] = {"type"}

    @classmethod
    def parse(cls, body: bytes) -> Fields:
        """Decode a request body that must be one JSON object."""
        try:
            values = json.loads(body or b"{}", parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise Refusal(f"the body is not JSON: {error}") from None
        if not isinstance(values, dict):
            raise Refusal(f"the body must be a JSON object, not {_kind(values)}")
        return cls(values)

    def text(self, name: str, *, limit: int = 4096) -> str:
        value = self.optional_text(name, limit=limit)
        if value is None:
            raise self._refuse(name, "is required")
        return value

    def optional_text(self, name: str, *, limit: int = 4096) -> str | None:
        value = self._take(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self._refuse(name, f"must be a string, not {_kind(value)}")
        if len(value) > limit:
            raise self._refuse(name, f"has {len(value)} characters; the limit is {limit}")
        return value

    def integer(self, name: str, *, low: int, high: int, default: int | None = _MISSING) -> int:
        value = self._take(name)
        if value is None:
            if default is _MISSING or default is None:
                raise self._refuse(name, "is required")
            return default
        return self._bounded(name, value, low, high)

    def optional_integer(self, name: str, *, low: int, high: int) -> int | None:
        value = self._take(name)
        return None if value is None else self._bounded(name, value, low, high)

    def number(
        self, name: str, *, low: float, high: float = math.inf, default: float | None = None
    ) -> float:
        value = self._take(name)
        if value is None:
            if default is None:
                raise self._refuse(name, "is required")
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._refuse(name, f"must be a number, not {_kind(value)}")
        if not low <= value <= high:
            raise self._refuse(name, f"is {value}; it must be between {low} and {high}")
        return float(value)

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self._take(name)
        if value is None:
            if default is None:
                raise self._refuse(name, "is required")
            return default
        if not isinstance(value, bool):
            raise self._refuse(name, f"must be true or false, not {_kind(value)}")
        return value

    def optional_flag(self, name: str) -> bool | None:
        value = self._take(name)
        return None if value is None else self.flag(name)

    def mapping(self, name: str, *, limit_bytes: int = 16 * 1024) -> dict[str, Any] | None:
        value = self._take(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._refuse(name, f"must be an object, not {_kind(value)}")
        size = len(json.dumps(value))
        if size > limit_bytes:
            raise self._refuse(name, f"takes {size} bytes as JSON; the limit is {limit_bytes}")
        return value

    def items(self, name: str, *, limit: int) -> list[Any] | None:
        value = self._take(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self._refuse(name, f"must be a list, not {_kind(value)}")
        if len(value) > limit:
            raise self._refuse(name, f"has {len(value)} entries; the limit is {limit}")
        return value

    def texts(self, name: str, *, limit: int) -> list[str] | None:
        values = self.items(name, limit=limit)
        if values is not None and not all(isinstance(value, str) for value in values):
            raise self._refuse(name, "must hold strings only")
        return values

    def nested(self, name: str) -> Fields | None:
        value = self._take(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._refuse(name, f"must be an object, not {_kind(value)}")
        return Fields(value, f"{self._where}{name}.")

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def raw(self, name: str) -> Any:
        """A field of any kind, as it came."""
        return self._take(name)

    def finish(self) -> None:
        """Refuse fields that nobody read. Null ones ask for nothing."""
        unknown = [name for name in self._values if name not in self._seen and self.has(name)]
        if unknown:
            known = ", ".join(sorted(self._seen - {"type"}))
            raise self._refuse(unknown[0], f"is not a field of this request; known are: {known}")

    def _take(self, name: str) -> Any:
        self._seen.add(name)
        return self._values.get(name)

    def _bounded(self, name: str, value: Any, low: int, high: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._refuse(name, f"must be an integer, not {_kind(value)}")
        if not low <= value <= high:
            raise self._refuse(name, f"is {value}; it must be between {low} and {high}")
        return value

    def _refuse(self, name: str, why: str) -> Refusal:
        return Refusal(f"{self._where}{name[:128]} {why}")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    return names.get(type(value), "null" if value is None else "a number")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
