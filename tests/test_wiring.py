"""How parts are joined: none of them needs to know many others."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import tinkex

PACKAGE = Path(tinkex.__file__).parent
MOST = 6


def test_no_part_is_made_of_more_than_six_others() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}: {name} takes {len(others)}: {', '.join(others)}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for name, others in _collaborators(ast.parse(path.read_text()))
        if len(others) > MOST
    ]
    assert not found


def test_collaborators_are_counted() -> None:
    """The test above can fail."""
    source = """
from tinkex.server.a import A, B
class C:
    def __init__(self, a: A, b: list[B] | None, call: Callable[[], A], name: str) -> None: ...
"""
    assert list(_collaborators(ast.parse(source))) == [("C", ["a", "b", "call"])]


def _collaborators(module: ast.Module) -> Iterator[tuple[str, list[str]]]:
    """(class, the arguments of its constructor that are parts of tinkex or call into them)."""
    parts = {"Callable", *_imported(module)}
    for each in ast.walk(module):
        if isinstance(each, ast.ClassDef):
            for function in each.body:
                if isinstance(function, ast.FunctionDef) and function.name == "__init__":
                    given = [*function.args.args, *function.args.kwonlyargs]
                    yield each.name, [one.arg for one in given if _names(one) & parts]


def _imported(module: ast.Module) -> set[str]:
    return {
        alias.asname or alias.name
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tinkex.")
        for alias in node.names
    }


def _names(argument: ast.arg) -> set[str]:
    if argument.annotation is None:
        return set()
    return {node.id for node in ast.walk(argument.annotation) if isinstance(node, ast.Name)}
