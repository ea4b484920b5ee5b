"""Every public name is in the API reference, and nothing that is in it has gone."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import tinkex
import tinkex.types
from support.documents import DOCS

PAGES = "\n".join(path.read_text(encoding="utf-8") for path in sorted((DOCS / "api").glob("*.md")))
DOCUMENTED = set(re.findall(r"^\.\. (?:auto\w+|py:data):: ([\w.]+)", PAGES, re.M))
MODULES = ("auth", "events", "metrics", "recovery", "regularizers", "types")
NOT_OBJECTS = {*MODULES, "__title__", "__version__"}


def test_every_public_name_is_documented() -> None:
    last = {name.rpartition(".")[2] for name in DOCUMENTED}
    public = {*tinkex.__all__, *tinkex.types.__all__} - NOT_OBJECTS
    assert public <= last, f"not in docs/api: {sorted(public - last)}"


def test_every_documented_name_exists() -> None:
    missing = [name for name in sorted(DOCUMENTED) if not _exists(name)]
    assert not missing, f"docs/api names what does not exist: {missing}"


def _exists(dotted: str) -> bool:
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            found = getattr(found, name, None)
        return found is not None
    return False
