"""Facts are written once: those of the protocol in `wire` or `types`, where caches lie in `text`,
what a family of models is in its own module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tinkex
from tinkex.engine.model.families import FAMILIES
from tinkex.types.tinker_path import CHECKPOINT_KINDS, SCHEME, TRAINING_WEIGHTS
from tinkex.wire import limits

PACKAGE = Path(next(iter(tinkex.__path__)))
FLOORS = ("client", "server", "cli")
"""Those that stand on `wire` and `types`. The engine knows neither, and no protocol."""

WHOLE = {
    *(value.lower() for name, value in vars(limits).items() if name.startswith("HEADER_")),
    *(limits.PROTOBUF_TYPE, limits.ZSTD_ENCODING, limits.PENDING_TYPE, limits.METADATA_STATUS),
    *(limits.QUEUE_PAUSED_CAPACITY, limits.QUEUE_PAUSED_RATE_LIMIT),
    *(CHECKPOINT_KINDS.keys() - {TRAINING_WEIGHTS}),
}
"""Headers, content types, states, kinds. `weights` and `active` have other meanings too."""

OPENINGS = (SCHEME, limits.API_KEY_PREFIX, limits.JWT_PREFIX, "/api/v1")
"""What paths, keys and routes begin with."""

NUMBERS = {
    ast.dump(ast.parse(text, mode="eval").body): text
    for text in ("10**9", "2**31 - 1", "-99999.0", "10 * 365 * 24 * 3600")
}
"""The stride of clones, the last number and token, an empty cell, the longest life."""


def literals(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of every literal of the protocol in a file; prose may name them."""
    tree = ast.parse(path.read_text())
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and ast.dump(node) in NUMBERS:
            yield node.lineno, NUMBERS[ast.dump(node)]
        text = node.value if isinstance(node, ast.Constant) and id(node) not in bare else None
        if isinstance(text, str) and _is_fact(text):
            yield node.lineno, text


def _is_fact(text: str) -> bool:
    return text.lower() in WHOLE or (text.startswith(OPENINGS) and " " not in text)


def test_no_floor_above_writes_down_a_fact_of_the_protocol() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line} {text!r}"
        for floor in FLOORS
        for path in sorted((PACKAGE / floor).rglob("*.py"))
        for line, text in literals(path)
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        'path = f"tinker://{run}/weights/{name}"',
        'headers["X-API-Key"] = key',
        'if row.kind == "external_weights": pass',
        'PATH = "/api/v1/asample"',
        'key = "tml-local"',
        "STRIDE = 10**9",
        "LIMIT = 2**31 - 1",
        'state = "paused_capacity"',
        'kind: Literal["complete_metadata"]',
    ],
)
def test_the_check_finds_what_it_is_for(tmp_path: Path, source: str) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    assert len([*literals(path)]) == 1


def test_prose_may_name_a_fact(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text('"""tinker:// paths."""\nhelp = "Saved weights: tinker://RUN/weights/NAME"\n')
    assert [*literals(path)] == []


def test_where_caches_lie_is_written_once() -> None:
    """The client's lookup and the server's once differed in whether they knew XDG_CACHE_HOME."""
    words = ("models--", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE")
    modules = {path: path.read_text("utf-8") for path in PACKAGE.rglob("*.py")}
    found = {path for path, text in modules.items() if any(word in text for word in words)}
    assert found == {PACKAGE / "text" / "hub_cache.py"}


def test_only_a_family_s_own_module_decides_by_its_name() -> None:
    families, engine = PACKAGE / "engine" / "model" / "families", PACKAGE / "engine"
    deciding = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in engine.rglob("*.py")
        if families not in path.parents
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Compare) and FAMILIES.keys() & set(_texts(node))
    ]
    assert deciding == []


def _texts(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value
