"""The scripts behind the documents: figures come from results, pictures from real output."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from support.documents import ROOT

SCRIPTS = ROOT / "scripts"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"script_{name}", SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up by name
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_performance_page_holds_every_recorded_result() -> None:
    page = load("performance_page").page()
    for result in (ROOT / "benchmarks" / "results").glob("*.md"):
        title = result.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        assert f"## {title}" in page


def test_every_figure_of_the_readme_has_its_row_in_a_result() -> None:
    script = load("readme_figures")
    table = script.table().splitlines()
    assert len(table) == len(script.FIGURES) + 2
    readme = script.README.read_text(encoding="utf-8")
    assert all(figure.says in readme for figure in script.FIGURES)


def test_a_row_that_is_gone_stops_the_readme_from_being_written() -> None:
    with pytest.raises(SystemExit, match="no row 'gone'"):
        load("readme_figures").find_row(["| here | 1 |"], "gone")


def test_the_recorded_screen_is_what_remains_after_rewriting() -> None:
    screen = load("record_demo").final_screen
    bar = "one\r\n  0%\x1b[K\r 50%\x1b[K\r100%\x1b[K\r\nthree\r\n"
    assert screen(bar) == ["one", "100%", "three", ""]
    assert screen("a\nb\n\x1b[2A\x1b[2Kc\n\x1b[2Kd") == ["c", "d", ""]
    assert screen("plain \x1b[32mgreen\x1b[0m") == ["plain \x1b[32mgreen\x1b[0m"]


@pytest.mark.slow
def test_both_libraries_agree_on_one_server(tmp_path: Path) -> None:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TINKER_", "TINKEX_"))}
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "parity.py"), "--model", "tinkex/tiny-llama", "--steps=2"],
        env={**kept, "TINKEX_CACHE": str(tmp_path), "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "greedy samples are the same" in done.stdout
    assert done.stdout.rstrip().endswith("agreed")
