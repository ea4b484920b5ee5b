"""What the demo tells people to type works where they are."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tinkex.cli.commands import demo


def test_a_command_on_the_path_is_called_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = _script(tmp_path)
    monkeypatch.setenv("PATH", str(script.parent))
    assert demo.command_name() == "tinkex"


def test_a_command_of_an_environment_that_is_not_active_is_called_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = _script(tmp_path)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", str(script.with_name("python")))
    assert demo.command_name() == str(script)
    monkeypatch.chdir(tmp_path)
    assert demo.command_name() == ".venv/bin/tinkex"


def test_without_a_script_the_module_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert demo.command_name() == f"{tmp_path / 'python'} -m tinkex"


def test_answers_are_broken_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    facts = {"before": "word " * 30, "after": demo.ANSWER, "losses": [1.0, 0.5]}
    facts |= {"checkpoint_path": "tinker://run/sampler_weights/demo", "page": None}
    lines = demo.DemoDone(facts | {"destination": "demo"}).lines()
    told = lines[lines.index(f"Asked:   {demo.QUESTION}") + 1 : lines.index("Type next:") - 2]
    assert max(map(len, told)) <= 40
    assert "".join(told).count("word") == 30


def _script(folder: Path) -> Path:
    script = folder / ".venv" / "bin" / "tinkex"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    return script
