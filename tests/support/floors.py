"""Which part of the package imports which, read from the source without running it.

Floors are the folders of the package, rooms the folders and single modules of a floor.

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
    "text": ("text", "types"),
    "client": ("client", "text", "wire", "types"),
    "server": ("server", "text", "wire", "types", "engine.messages"),
    "engine": ("engine",),
    "cluster": (
        "cluster",
        "server.engines",
        "server.settings",
        "engine.errors",
        "engine.frames",
        "engine.messages",
        "engine.own_folder",
        "engine.process",
        "engine.settings",
    ),
    "cli": ("cli", "client", "server", "text", "wire", "types"),
}
"""Floor -> the parts of tinkex it may import."""

SEAMS: dict[str, tuple[str, ...]] = {
    "cluster/link.py": ("ray",),
    "cluster/placed_engine.py": ("ray",),
    "server/engines/child_process.py": ("engine.settings", "engine.process.parent"),
    "server/engines/launching.py": ("cluster.engines",),
    "server/engines/model_check.py": ("engine.model.headers",),
    "server/engines/model_needs.py": ("engine.model.known", "engine.model.sizes"),
    "server/storage/objects/store.py": ("engine.process.parts", "engine.process.linked_files"),
    "cli/outside/exports.py": ("engine.exports.export",),
}
"""The file that starts an engine process, the one that chooses where, those that ask whether one
could be started, the one that gets large objects as engines elsewhere do, and the one that has
checkpoints written in other layouts: they find by name, when asked to, what they need. And the two
files that import Ray."""

ROOMS: dict[str, dict[str, str]] = {
    "wire": {
        "errors": "",
        "limits": "",
        "package_version": "",
        "routes": "",
        "reducers": "",
        "schema_pb2": "",
        "calls": "errors",
        "chunking": "limits",
        "compression": "errors limits",
        "framing": "errors",
        "json_text": "errors",
        "flags": "json_text",
        "paths": "errors limits",
        "tensors": "errors schema_pb2",
        "samples": "errors schema_pb2 tensors",
        "sample_json": "errors json_text samples",
        "forward_backward": (
            "calls errors framing json_text limits sample_json schema_pb2 tensors"
        ),
        "json": "errors forward_backward json_text sample_json",
        "protobuf": "calls errors forward_backward samples",
    },
    "client": {
        "concurrency": "",
        "redaction": "",
        "error_details": "redaction",
        "errors": "error_details redaction",
        "events": "redaction",
        "http": "",
        "settings": "errors events http",
        "transport": "errors http settings",
        "api": "concurrency error_details errors events http redaction settings transport",
        "arguments": "errors",
        "session": "api concurrency errors events http settings transport",
        "additions": "api arguments concurrency session",
        "checkpoint_records": "additions api arguments concurrency errors session",
        "admin": "concurrency session",
        "auth": "api errors session settings",
        "rest": "additions admin api arguments checkpoint_records concurrency errors session",
        "tokenizer_files": "api errors http redaction session settings transport",
        "tokenizer": "errors session tokenizer_files",
        "sampling": "api arguments concurrency errors redaction session settings tokenizer",
        "training": "api arguments concurrency errors events sampling session settings tokenizer",
        "service": (
            "api arguments concurrency errors events rest sampling session settings training"
        ),
        "recovery": "errors events rest service training",
    },
    "server": {
        "clock": "",
        "settings": "",
        "refusals": "",
        "fair_threads": "refusals",
        "storage": "clock fair_threads settings",
        "listening": "clock",
        "tenancy": "clock listening refusals settings storage",
        "connections": "settings storage tenancy",
        "budgets": "refusals",
        "checkpoints": "clock refusals storage",
        "engines": "clock refusals settings",
        "dashboard": "checkpoints clock refusals",
        "promises": "",
        "protocol": "promises refusals settings",
        "tracing": "clock fair_threads refusals storage",
        "sampling": (
            "budgets checkpoints clock engines listening promises protocol refusals settings "
            "storage tenancy tracing"
        ),
        "operations": (
            "checkpoints clock engines fair_threads listening promises protocol refusals sampling "
            "settings storage"
        ),
        "recording": "clock engines operations sampling settings storage tenancy",
        "polls": "operations promises refusals sampling settings",
        "fairness": "",
        "training": (
            "checkpoints clock engines fair_threads fairness listening operations promises "
            "protocol recording refusals settings storage tenancy"
        ),
        "maintenance": "listening",
        "rolling": "engines refusals sampling training",
        "autoscaling": "clock engines rolling sampling settings training",
        "views": (
            "checkpoints clock engines operations polls recording refusals sampling settings "
            "storage tenancy training"
        ),
        "core": (
            "autoscaling budgets checkpoints clock dashboard engines fair_threads listening "
            "maintenance operations polls promises protocol recording rolling sampling settings "
            "storage tenancy tracing training views"
        ),
        "http": (
            "checkpoints connections core dashboard engines operations polls promises protocol "
            "recording refusals sampling settings storage tenancy tracing training views"
        ),
        "endpoints": (
            "checkpoints core engines fair_threads http protocol recording refusals sampling "
            "storage tenancy"
        ),
        "app": "clock connections core endpoints engines http settings storage",
        "hosting": "app connections core dashboard engines http sampling settings storage tenancy",
    },
    "cluster": {
        "parts": "",
        "placement": "",
        "away": "",
        "served_folders": "",
        "engine_actor": "away parts",
        "engines": "placement",
        "link": "engine_actor placement",
        "placed_engine": "link parts placement served_folders",
        "driver": "link placed_engine",
    },
    "engine": {
        "collectives": "",
        "cpu": "",
        "errors": "",
        "finite": "",
        "kernels": "",
        "messages": "",
        "to_device": "",
        "to_host": "",
        "pieces": "",
        "model": "collectives cpu errors finite kernels to_device",
        "adapters": "collectives cpu errors finite kernels messages model pieces to_device",
        "builtin": "",
        "exports": "adapters errors messages model",
        "frames": "",
        "own_folder": "",
        "limits": "",
        "losses": "collectives errors frames limits messages to_device",
        "sampling": "adapters collectives cpu errors frames kernels messages model to_device",
        "settings": "",
        "training": (
            "adapters collectives cpu errors kernels limits losses messages model own_folder "
            "pieces to_device to_host"
        ),
        "process": (
            "adapters collectives cpu errors frames limits messages model own_folder pieces "
            "sampling settings training"
        ),
    },
    "cli": {
        "deadline": "",
        "reasons": "",
        "whole_file": "",
        "errors": "reasons",
        "terminal": "",
        "transfer": "deadline errors terminal whole_file",
        "outside": "errors transfer",
        "line": "deadline errors outside terminal transfer whole_file",
        "listings": "errors line outside whole_file",
        "commands": ("errors line listings outside reasons terminal transfer whole_file"),
        "main": "line outside",
        "__main__": "main",
    },
}
"""Floor -> its rooms, lowest first -> the other rooms of that floor each may import."""

ENGINE_LIBRARIES = {
    "torch",
    "numpy",
    "safetensors",
    "tokenizers",
    "gguf",
    "triton",
    "llguidance",
}
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
    if top == "ray":
        return False
    if top != PACKAGE:
        return floor != "engine" or top in ENGINE_LIBRARIES or top in sys.stdlib_module_names
    if floor == "cli" and rest[:1].isupper():
        return True  # a public name of the package, such as tinkex.RestClient
    return any(f"{rest}.".startswith(f"{part}.") for part in ALLOWED[floor])


def room_violations(root: Path) -> list[Violation]:
    """Every import within a floor from a room into one that `ROOMS` does not give it."""
    found = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        floor, room = room_of(name.removesuffix(".py").replace("/", "."))
        if floor not in ROOMS or room in ("", "__init__"):
            continue
        for line, module in imported(path):
            part = module.removeprefix(f"{PACKAGE}.")
            if part != module and not may_enter(floor, room, part):
                found.append(Violation(name, line, module))
    return found


def may_enter(floor: str, room: str, part: str) -> bool:
    other_floor, other = room_of(part)
    return other_floor != floor or other in (room, *ROOMS[floor].get(room, "").split())


def room_of(part: str) -> tuple[str, str]:
    """("server", "storage") of `server.storage.home`; a module of its own is its own room."""
    floor, _, rest = part.partition(".")
    return floor, rest.partition(".")[0]


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
    if module in (PACKAGE, *(f"{PACKAGE}.{floor}" for floor in ROOMS)):
        for alias in node.names:
            yield node.lineno, f"{module}.{alias.name}"
    else:
        yield node.lineno, module


def _is_import_call(node: ast.Call) -> bool:
    name = getattr(node.func, "id", getattr(node.func, "attr", ""))
    return name in ("import_module", "__import__") and bool(node.args)
