"""Every public method of the official client works against our server; the page says so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tinker

import tinkex
from compat import table
from compat.exercises import EXERCISES
from compat.surface import public_methods
from compat.world import World
from support.live_server import LiveServer, live_server

MODEL = "tinkex/tiny-qwen3"
METHODS = public_methods()
PASSED: dict[str, set[str]] = {column: set() for column in table.COLUMNS}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with live_server(tmp_path_factory.mktemp("compat") / "home", "--model", MODEL) as server:
        yield server


@pytest.fixture(scope="module", params=list(table.COLUMNS))
def column(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def world(
    column: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("TINKER_API_KEY", "TINKER_BASE_URL"):
            patch.delenv(name, raising=False)
        world = _world(column, request, tmp_path_factory.mktemp(column), patch)
        yield world
        world.close()


def _world(
    column: str, request: pytest.FixtureRequest, folder: Path, patch: pytest.MonkeyPatch
) -> World:
    sdk: Any = tinker if column == "official" else tinkex
    if column == "local":
        patch.setenv("TINKEX_HOME", str(folder / "home"))
        patch.setenv("TINKEX_MODELS", MODEL)
        return World(sdk, "local", MODEL, f"tml-{column}")
    url = request.getfixturevalue("server").url
    return World(sdk, url, MODEL, f"tml-{column}")


@pytest.mark.parametrize("method", METHODS)
def test_method(world: World, column: str, method: str) -> None:
    EXERCISES[method](world)
    PASSED[column].add(method)


def test_every_public_method_has_an_exercise_and_no_exercise_is_stale() -> None:
    assert set(EXERCISES) == set(METHODS)


def test_the_page_says_what_the_tests_saw() -> None:
    if not all(PASSED.values()):
        pytest.skip("needs the whole matrix in one run")
    page = table.render(METHODS, PASSED)
    if os.environ.get("TINKEX_REGENERATE"):
        table.PATH.write_text(page, encoding="utf-8")
    assert table.PATH.read_text(encoding="utf-8") == page, (
        "docs/compatibility.md is stale: run the tests in tests/compat with TINKEX_REGENERATE=1"
    )
