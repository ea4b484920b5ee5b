"""Which part of the package imports which, read from the source without running it.

Imports inside functions and under TYPE_CHECKING count: a dependency is one wherever it is written.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "tinkex"

ALLOWED: dict[str, tuple[str, ...]] = {
    "types": ("types",),
    "wire": ("wire", "types"),
    "client": ("client", "wire", "types"),
    "server": ("server", "wire", "types", "engine.messages"),
    "engine": ("engine",),
    "cli": ("cli", "client", "server", "wire", "types"),
}
"""Floor -> the parts of tinkex it may import."""

SEAMS: dict[str, tuple[str, ...]] = {
    "server/launch.py": ("engine.settings", "engine.remote"),
    "server/model_check.py": ("engine.model.headers",),
}
"""The file that starts an engine process, and the one that asks whether one could be started: they
find by name, when asked to, what needs no torch."""

ENGINE_LIBRARIES = {"torch", "numpy", "safetensors", "tokenizers", "gguf", "triton"}
"""What an engine may need: it runs on machines that have nothing else."""


@dataclass(frozen=True, order=True)
class Violation:
    file: str
    line: int
    imported: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.imported}"


def violations(root: Path) -> list[Violation]:
    """Every import under `root` (the package folder) that crosses a floor it must not."""
    found = []
    for path in sorted(root.rglob("*.py")):
        floor = path.relative_to(root).parts[0].removesuffix(".py")
        if floor not in ALLOWED:
            continue
        name = path.relative_to(root).as_posix()
        for line, module in imported(path):
            if not is_allowed(floor, module) and not is_seam(name, module):
                found.append(Violation(name, line, module))
    return found


def is_allowed(floor: str, module: str) -> bool:
    top, _, rest = module.partition(".")
    if top != PACKAGE:
        return floor != "engine" or top in ENGINE_LIBRARIES or top in sys.stdlib_module_names
    if floor == "cli" and rest[:1].isupper():
        return True  # a public name of the package, such as tinkex.RestClient
    return any(f"{rest}.".startswith(f"{part}.") for part in ALLOWED[floor])


def is_seam(name: str, module: str) -> bool:
    return module.removeprefix(f"{PACKAGE}.") in SEAMS.get(name, ())


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, full module name) of every import statement and `import_module("…")` call."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            yield from _from(node)
        elif isinstance(node, ast.Call) and _is_import_call(node):
            argument = node.args[0]
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield node.lineno, argument.value


def _from(node: ast.ImportFrom) -> Iterator[tuple[int, str]]:
    """`from tinkex import wire` imports tinkex.wire; a relative import is a violation by name."""
    module = "." * node.level + (node.module or "")
    if module in (PACKAGE, f"{PACKAGE}.engine"):
        for alias in node.names:
            yield node.lineno, f"{module}.{alias.name}"
    else:
        yield node.lineno, module


def _is_import_call(node: ast.Call) -> bool:
    name = getattr(node.func, "id", getattr(node.func, "attr", ""))
    return name in ("import_module", "__import__") and bool(node.args)
