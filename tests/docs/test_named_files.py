"""The files that the documents name exist, and the walk through a training step can be followed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from support.documents import DOCS, ROOT, pages

SOURCE = ROOT / "src"
PLACES = (ROOT, SOURCE, SOURCE / "tinkex")
"""What a named file may be relative to."""
_FILE = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|sh|proto))(?:::\w+)?`")
_WALK = DOCS / "architecture.md"


def found(name: str) -> Path | None:
    return next((place / name for place in PLACES if (place / name).exists()), None)


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_a_page_names_exists(page: Path) -> None:
    named = _FILE.findall(page.read_text(encoding="utf-8"))
    assert [name for name in named if found(name) is None] == []


def walk() -> list[list[str]]:
    """The rows of the table, each a list of files."""
    text = _WALK.read_text(encoding="utf-8").split("The same in files", 1)[1]
    table = text.split("\n\n")[1]
    return [files for row in table.splitlines() if (files := _FILE.findall(row))]


@pytest.mark.parametrize("row", walk(), ids=lambda row: row[0])
def test_a_step_of_the_walk_leads_to_the_next(row: list[str]) -> None:
    assert len(row) > 1
    for here, there in pairwise(row):
        before = row[: row.index(there)]
        assert any(_touch(each, there) for each in before), f"{here} does not lead to {there}"


def test_files_that_have_nothing_to_do_with_each_other_would_be_seen() -> None:
    assert not _touch("client/api/api.py", "client/training/run.py")


def _touch(one: str, other: str) -> bool:
    return _module(other) in _imports(one) or _module(one) in _imports(other)


def _module(name: str) -> str:
    return "tinkex." + name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imports(name: str) -> set[str]:
    path = found(name)
    assert path is not None, name
    return set(_imported(ast.parse(path.read_text(encoding="utf-8"))))


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
