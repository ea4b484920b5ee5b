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


def test_a_figure_is_what_its_result_says_or_is_left_out_aloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = load("readme_figures")
    monkeypatch.setattr(script, "RESULTS", tmp_path)
    told = script.Figure("speed", "run", "step", "another")
    gone = script.Figure("size", "run", "bytes")
    monkeypatch.setattr(script, "FIGURES", (told, gone))
    (tmp_path / "run.md").write_text("- date: 2026-11-15 08:00\n| step | 2 ms | 4 ms | 2.00× | |\n")
    row = script.table().splitlines()[-1]
    assert "| speed | 2 ms | another: 4 ms | 2.00× | [run](benchmarks/results/run.md)" in row
    assert "2026-11-15" in row
    assert "left out: 'size'" in capsys.readouterr().err


def test_figures_are_written_as_people_read_them() -> None:
    readable = load("readme_figures").readable
    assert readable("1616 ms") == "1,616 ms"
    assert readable("official SDK: 1616 ms") == "official SDK: 1,616 ms"
    assert readable("1871.67×") == "1,872×"
    for plain in ("17,870 tokens/s", "0.8633 ms", "encode 128 datums × 2,048 tokens", "5.25×"):
        assert readable(plain) == plain


def test_the_readme_has_figures_and_each_names_its_result() -> None:
    script = load("readme_figures")
    text = script.README.read_text(encoding="utf-8").split(script.START)[1].split(script.END)[0]
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert rows
    assert all("](benchmarks/results/" in row for row in rows)


def test_the_recorded_screen_is_what_remains_after_rewriting() -> None:
    screen = load("record_demo").final_screen
    bar = "one\r\n  0%\x1b[K\r 50%\x1b[K\r100%\x1b[K\r\nthree\r\n"
    assert screen(bar) == ["one", "100%", "three", ""]
    assert screen("a\nb\n\x1b[2A\x1b[2Kc\n\x1b[2Kd") == ["c", "d", ""]
    assert screen("plain \x1b[32mgreen\x1b[0m") == ["plain \x1b[32mgreen\x1b[0m"]


def test_the_memory_page_is_what_the_engine_counts() -> None:
    script = load("memory_table")
    page = script.PAGE.read_text(encoding="utf-8")
    assert script.written(page) == page, "run: python scripts/memory_table.py"


@pytest.mark.parametrize(
    ("model", "published"), [("Qwen3-8B", 8.19e9), ("Qwen3-30B-A3B", 30.5e9), ("Qwen3-0.6B", 0.6e9)]
)
def test_counted_models_have_as_many_parameters_as_published(model: str, published: float) -> None:
    script = load("memory_table")
    counted = script.parameters(script.parse_config(script.MODELS[model]))
    assert counted == pytest.approx(published, rel=0.01)


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
