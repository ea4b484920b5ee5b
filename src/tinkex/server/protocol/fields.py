"""Reads the fields of a JSON request by name and kind, and refuses what nobody asked for.

Every accessor names the field, what came and what is wanted. `finish` refuses fields that were
never read: a field a client sends is honoured or refused, never ignored.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinkex.server.refusals import Refusal

_MISSING: Any = object()
_HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")
"""An escape that may be half of a character: only together with its other half can it be stored."""


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
            text = body.decode() or "{}"
            values = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
            if _HALF_CHARACTER.search(text):
                json.dumps(values, ensure_ascii=False).encode()
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
        if not low <= value <= min(high, sys.float_info.max):
            raise self._refuse(name, f"is {_shown(value)}; it must be between {low} and {high}")
        return float(value)

    def choice(self, name: str, options: Sequence[str], default: str | None = None) -> str:
        """A text that is one of the options."""
        value = self._take(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or value not in options:
            raise self._refuse(name, f"must be one of {', '.join(options)}")
        return value

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

    def integers(self, name: str, *, low: int, high: int, limit: int) -> NDArray[np.int64] | None:
        """A list of integers, as an array: there may be millions."""
        values = self.items(name, limit=limit)
        if values is None:
            return None
        if not values:
            return np.zeros(0, dtype=np.int64)
        if set(map(type, values)) != {int}:
            raise self._refuse(name, "must hold integers only")
        array = np.array(values)
        if array.dtype.kind != "i":
            raise self._refuse(name, f"must hold integers from {low} to {high}")
        if int(array.min()) < low or int(array.max()) > high:
            raise self._refuse(name, f"must hold integers from {low} to {high}")
        return array.astype(np.int64, copy=False)

    def objects(self, name: str, *, limit: int) -> list[Fields] | None:
        """A list of objects, each to be read and finished by itself."""
        values = self.items(name, limit=limit)
        if values is None:
            return None
        for index, value in enumerate(values):
            if not isinstance(value, dict):
                raise self._refuse(f"{name}[{index}]", f"must be an object, not {_kind(value)}")
        where = f"{self._where}{name}"
        return [Fields(value, f"{where}[{index}].") for index, value in enumerate(values)]

    def choices(self, name: str, options: Sequence[str]) -> list[str] | None:
        """A list of such texts, each at most as often as there are options."""
        values = self.texts(name, limit=len(options))
        if values is not None and not set(values) <= set(options):
            raise self._refuse(name, f"must hold only {', '.join(options)}")
        return values

    def moment(self, name: str) -> datetime:
        """A time with its offset from UTC."""
        try:
            found = datetime.fromisoformat(self.text(name, limit=64))
            if found.tzinfo is None:
                raise self._refuse(name, "needs an offset from UTC")
            return found.astimezone(UTC)
        except (ValueError, OverflowError):
            raise self._refuse(name, "must be an ISO 8601 time") from None

    def nested(self, name: str) -> Fields | None:
        value = self._take(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._refuse(name, f"must be an object, not {_kind(value)}")
        return Fields(value, f"{self._where}{name}.")

    def given(self) -> dict[str, Any]:
        """All fields that are there, for a reader that knows them by a type."""
        return {name: value for name, value in self._values.items() if value is not None}

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
            raise self._refuse(name, f"is {_shown(value)}; it must be between {low} and {high}")
        return value

    def _refuse(self, name: str, why: str) -> Refusal:
        return Refusal(f"{self._where}{name[:128]} {why}")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    return names.get(type(value), "null" if value is None else "a number")


def _shown(value: float) -> str:
    """A number in a message: a short one as it is, a long one by its size."""
    text = str(value)
    return text if len(text) <= 40 else f"a number of {len(text)} digits"


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is too large for a number")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
