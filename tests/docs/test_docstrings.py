"""Every public name says what it is, and guides import public names only."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import tinkex
from support.documents import DOCS

MODULES = ["tinkex", *(f"tinkex.{name}" for name in tinkex._SUBMODULES), "tinkex.alias"]
ROOT = DOCS.parent
MANY = 6
PAGES = [ROOT / "README.md", *DOCS.rglob("*.md"), *(ROOT / "examples").glob("*.py")]


def public_objects() -> Iterator[tuple[str, Any]]:
    """Classes and functions of the public modules, and the methods of those classes."""
    for module in map(import_module, MODULES):
        names = getattr(module, "__all__", [n for n in vars(module) if not n.startswith("_")])
        for name in names:
            value = getattr(module, name)
            if str(getattr(value, "__module__", "")).startswith("tinkex"):
                yield f"{module.__name__}.{name}", value
                if isinstance(value, type):
                    yield from methods(f"{module.__name__}.{name}", value)


def methods(owner: str, cls: Any) -> Iterator[tuple[str, Any]]:
    """Its own, and those of the parts of ours that it is made of."""
    own = [base for base in inspect.getmro(cls) if base.__module__.startswith("tinkex")]
    # A list: looking at a validator that is not built yet builds it, into the class.
    for name, value in [item for base in own for item in vars(base).items()]:
        function = next(
            (getattr(value, kind) for kind in ("fget", "func", "__func__") if hasattr(value, kind)),
            value,
        )
        if not name.startswith("_") and inspect.isfunction(function):
            yield f"{owner}.{name}", function


def says_nothing(value: Any) -> bool:
    written = vars(value).get("__doc__") if isinstance(value, type) else value.__doc__
    made = f"{getattr(value, '__name__', '')}("  # what a dataclass makes for itself
    return not (written or "").strip() or written.startswith(made)


def test_every_public_name_has_a_docstring() -> None:
    checked = dict(public_objects())
    assert len(checked) > 400
    described = (type, type(lambda: None))
    silent = [n for n, v in checked.items() if isinstance(v, described) and says_nothing(v)]
    assert silent == []


def test_every_module_opens_by_saying_what_it_is() -> None:
    modules = {path: ast.parse(path.read_text("utf-8")) for path in (ROOT / "src").rglob("*.py")}
    generated = "_pb2.py"
    silent = [path for path, module in modules.items() if not ast.get_docstring(module)]
    assert [path for path in silent if not path.name.endswith(generated)] == []


def uncommented(source: str) -> Iterator[str]:
    """Fields of dataclasses with many of them that have no comment behind, above or below."""
    lines = [*source.splitlines(), ""]
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ClassDef):
            continue
        fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
        said = [ast.unparse(each) for each in (*node.decorator_list, *node.bases)]
        made = any("dataclass" in each or "NamedTuple" in each for each in said)
        for field in fields if made and len(fields) >= MANY else []:
            last = field.end_lineno or field.lineno
            behind, above, below = lines[last - 1], lines[field.lineno - 2], lines[last]
            if not ("  # " in behind or above.startswith("    #") or below.startswith('    """')):
                yield f"{node.name}.{ast.unparse(field.target)}"


def test_each_field_of_a_large_dataclass_has_a_comment() -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")}
    assert [name for source in sources.values() for name in uncommented(source)] == []


def test_guides_and_examples_import_public_names_that_exist() -> None:
    wrong = []
    for page in PAGES:
        for module, names in re.findall(
            r"^\s*from (tinkex[\w.]*) import ([\w, ]+)$", page.read_text(encoding="utf-8"), re.M
        ):
            found = import_module(module)
            missing = [name for name in names.split(", ") if not hasattr(found, name.split()[0])]
            if module.startswith("tinkex.client") or missing:
                wrong.append((page.name, module, names))
    assert wrong == []
