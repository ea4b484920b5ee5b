"""Every public method of the official client works against our server; the page says so."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from compat import table
from compat.exercises import EXERCISES
from compat.surface import public_methods
from support.ending import ended_well
from support.live_server import LiveServer, live_server
from tinkex.server.engines.model_sources import default_cache, resolve

MODEL = "tinkex/tiny-qwen3"
METHODS = public_methods()
SCRIPT = Path(__file__).parent / "drive.py"
LIMIT_S = 300

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with live_server(tmp_path_factory.mktemp("compat") / "home", "--model", MODEL) as server:
        yield server


@pytest.fixture(scope="module")
def reports(
    server: LiveServer, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, str | None]]:
    """What went wrong with each method, by column of the page. One process each."""
    folder = tmp_path_factory.mktemp("reports")
    hub_with_tokenizer(folder / "hub")
    subjects = {
        "official": ("official", server.url),
        "tinkex": ("tinkex", server.url),
        "local": ("tinkex", "local"),
    }
    with ThreadPoolExecutor() as pool:
        running = {
            column: pool.submit(drive, sdk, url, folder) for column, (sdk, url) in subjects.items()
        }
        return {column: future.result() for column, future in running.items()}


def drive(sdk: str, base_url: str, folder: Path) -> dict[str, str | None]:
    report = folder / f"{sdk}-{base_url == 'local'}.json"
    environ = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_CACHE": str(folder / "hub"),
        "TINKER_PROJECT_ID": "project-0",
        "TINKEX_HOME": str(folder / "home"),
        "TINKEX_MODELS": MODEL,
    }
    done = subprocess.run(
        [sys.executable, str(SCRIPT), sdk, base_url, MODEL, str(report)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended_well(done.returncode, official=sdk == "official"), done.stderr[-6000:]
    found: dict[str, str | None] = json.loads(report.read_text(encoding="utf-8"))
    return found


def hub_with_tokenizer(hub: Path) -> None:
    """A Hugging Face cache that knows the model's tokenizer, as one does for a real model."""
    source = resolve(MODEL, default_cache(os.environ), os.environ).tokenizer_dir
    repository = hub / f"models--{MODEL.replace('/', '--')}"
    snapshot = repository / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("1")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, snapshot / name)


@pytest.mark.parametrize("column", list(table.COLUMNS))
@pytest.mark.parametrize("method", METHODS)
def test_method(reports: dict[str, dict[str, str | None]], column: str, method: str) -> None:
    problem = reports[column][method]
    assert problem is None, problem


def test_every_public_method_has_an_exercise_and_no_exercise_is_stale() -> None:
    assert set(EXERCISES) == set(METHODS)


def test_the_page_says_what_the_tests_saw(reports: dict[str, dict[str, str | None]]) -> None:
    passed = {
        column: {method for method, problem in report.items() if problem is None}
        for column, report in reports.items()
    }
    page = table.render(METHODS, passed)
    if os.environ.get("TINKEX_REGENERATE"):
        table.PATH.write_text(page, encoding="utf-8")
    assert table.PATH.read_text(encoding="utf-8") == page, (
        "docs/compatibility.md is stale: run the tests in tests/compat with TINKEX_REGENERATE=1"
    )
