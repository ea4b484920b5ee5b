"""Compares JSON values with the shapes that docs/cli-json.md gives for them."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "cli-json.md"
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "time": (str,),
}


def shapes() -> dict[str, Any]:
    """The shape of every command on the page."""
    found = re.findall(
        r"^## ([a-z][a-z -]*)\n.*?```json\n(.*?)```", PAGE.read_text("utf-8"), re.S | re.M
    )
    return {name: json.loads(block) for name, block in found}


def mismatches(value: Any, shape: Any, where: str = "") -> list[str]:
    """Where `value` is not of the shape; an object or list may be null."""
    if isinstance(shape, str):
        return [] if _fits(value, shape) else [f"{where}: {value!r} is not {shape}"]
    if value is None and where:
        return []
    if isinstance(shape, list):
        if not isinstance(value, list):
            return [f"{where}: not a list"]
        return [
            m for i, item in enumerate(value) for m in mismatches(item, shape[0], f"{where}[{i}]")
        ]
    if not isinstance(value, dict):
        return [f"{where}: not an object"]
    if "*" in shape:
        return [
            m for name, v in value.items() for m in mismatches(v, shape["*"], f"{where}.{name}")
        ]
    return _object(value, shape, where)


def _object(value: dict[str, Any], shape: dict[str, Any], where: str) -> list[str]:
    known = {name.removesuffix("?"): inner for name, inner in shape.items()}
    needed = [name for name in shape if not name.endswith("?")]
    found = [f"{where}.{name} is missing" for name in needed if name not in value]
    found += [f"{where}.{name} is not documented" for name in value if name not in known]
    order = [name for name in known if name in value]
    if not found and list(value) != order:
        found.append(f"{where}: the keys come as {list(value)}, documented as {order}")
    for name in order:
        found += mismatches(value[name], known[name], f"{where}.{name}")
    return found


def _fits(value: Any, word: str) -> bool:
    if word == "anything":
        return True
    kind = word.removesuffix(" or null")
    if value is None:
        return kind != word
    if isinstance(value, bool) and kind != "boolean":
        return False
    if kind == "time" and isinstance(value, str):
        try:
            datetime.fromisoformat(value)
        except ValueError:
            return False
    return isinstance(value, _TYPES[kind])
