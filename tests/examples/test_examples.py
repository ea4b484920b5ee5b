"""Every example runs from a shell, on the embedded server or one of its own, and draws its curve.

Each runs with few steps, in a home of its own, in a process of its own, as a reader would.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.documents import ROOT
from support.ending import ended_well

EXAMPLES = ROOT / "examples"
SHARED = {"chat", "connection", "cookbook_recipe", "curve", "serving"}
TIMEOUT_S = 240
TINY = "tinkex/tiny-llama"
OFFICIAL_SDK = {"official_sdk", "cookbook_on_our_server"}
"""Examples of the official SDK, which leaves sockets open when it is done."""

FLAGS = {
    "supervised_chat": ("--model", TINY, "--steps", "3"),
    "reinforcement": ("--steps", "3"),
    "dpo": ("--steps", "3"),
    "distillation": ("--steps", "3"),
    "two_tenants": ("--steps", "3"),
    "recovery": ("--steps", "4"),
    "async_pipeline": ("--steps", "6"),
    "sampling_at_scale": ("--steps", "40"),
    "export_peft": ("--steps", "3"),
    "official_sdk": ("--steps", "3"),
    "cookbook_on_our_server": ("--steps", "2"),
    "cookbook_on_our_sdk": ("--steps", "2"),
}


def test_every_example_is_tried_and_listed() -> None:
    scripts = {path.stem for path in EXAMPLES.glob("*.py")} - SHARED
    assert scripts == set(FLAGS)
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(f"{name}.py" in table for name in scripts)


@pytest.mark.slow
@pytest.mark.parametrize("name", FLAGS)
def test_the_example_runs_and_draws_its_curve(name: str, tmp_path: Path, models: Path) -> None:
    strict = [] if name in OFFICIAL_SDK else ["-W", "error::ResourceWarning"]
    command = [sys.executable, *strict, str(EXAMPLES / f"{name}.py")]
    out = tmp_path / "out"
    done = subprocess.run(
        [*command, "--local", "--out", str(out), *FLAGS[name]],
        env=_environ(tmp_path / "home", models),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended_well(done.returncode, official=name in OFFICIAL_SDK), done.stdout + done.stderr
    assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "Traceback" not in done.stderr, done.stderr


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache of built-in models for all examples."""
    return tmp_path_factory.mktemp("models")


def _environ(home: Path, models: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TINKER_", "TINKEX_"))}
    return {
        **kept,
        "TINKEX_HOME": str(home),
        "TINKEX_CACHE": str(models),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "2",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
