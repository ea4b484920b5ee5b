"""The database has one door: outside its folder there is neither sqlite3 nor SQL."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import tinkex

PACKAGE = Path(tinkex.__file__).parent
DATABASE = PACKAGE / "server" / "storage" / "database"
_SQL = re.compile(r"^\s*(SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE TABLE|PRAGMA)\s")


def test_nobody_outside_the_database_imports_sqlite3_or_writes_sql() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line} {what}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if DATABASE not in path.parents
        for line, what in _breaches(ast.parse(path.read_text()))
    ]
    assert not found


def test_a_breach_is_found() -> None:
    source = 'import sqlite3\nfrom sqlite3 import Row\nx = f"SELECT {y} FROM t"\n"""Selects."""\n'
    assert [line for line, _ in _breaches(ast.parse(source))] == [1, 2, 3]


def _breaches(module: ast.Module) -> list[tuple[int, str]]:
    found = []
    for node in ast.walk(module):
        if isinstance(node, ast.Import) and any(each.name == "sqlite3" for each in node.names):
            found.append((node.lineno, "sqlite3"))
        if isinstance(node, ast.ImportFrom) and node.module == "sqlite3":
            found.append((node.lineno, "sqlite3"))
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and _SQL.match(node.value)
        ):
            found.append((node.lineno, node.value[:40]))
    return sorted(found)
