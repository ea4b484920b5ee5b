"""The pages about the command line say what the command line does."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
from pathlib import Path

import click
import pytest

from support.json_shape import mismatches, shapes
from tinkex.cli.line.invoke import load
from tinkex.cli.line.table import COMMANDS, Command, Group

ROOT = Path(__file__).parents[2]


def test_the_command_reference_is_current() -> None:
    path = ROOT / "scripts" / "generate_cli_reference.py"
    spec = importlib.util.spec_from_file_location("generate_cli_reference", path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    if os.environ.get("TINKEX_REGENERATE"):
        script.main()
    written = (ROOT / "docs" / "cli-reference.md").read_text(encoding="utf-8")
    assert written == script.page(), "run: python scripts/generate_cli_reference.py"


def every_command() -> dict[str, Command]:
    """Commands by the words someone types."""
    found: dict[str, Command] = {}
    for name, entry in COMMANDS.items():
        inner = entry.commands.values() if isinstance(entry, Group) else (entry,)
        found |= {f"{name} {c.name}" if isinstance(entry, Group) else name: c for c in inner}
    return found


@pytest.mark.parametrize("words", every_command())
def test_every_command_has_an_example_that_it_takes(words: str) -> None:
    command = load(every_command()[words])
    with click.Context(command, info_name=f"tinkex {words}", terminal_width=80) as ctx:
        shown = re.findall(r"^  Example: tinkex (.+)$", command.get_help(ctx), re.M)
    assert len(shown) == 1, "one line that begins with 'Example: tinkex', in 80 columns"
    typed = shlex.split(shown[0])
    assert typed[: len(words.split())] == words.split()
    with command.make_context(words, typed[len(words.split()) :]):
        pass  # parsing refuses an option or an argument that the command does not have


def test_every_command_that_prints_a_result_has_its_json_shape_documented() -> None:
    names = {
        f"{name} {command}".strip()
        for name, entry in COMMANDS.items()
        for command in (entry.commands if isinstance(entry, Group) else [""])
    }
    assert set(shapes()) == names - {"serve"}


def test_shapes_can_tell_a_wrong_value() -> None:
    shape = {"a": "integer", "b?": "string or null", "c": [{"d": "time"}]}
    assert mismatches({"a": 1, "c": []}, shape) == []
    assert mismatches({"a": 1, "b": None, "c": [{"d": "2026-01-31 12:00:00+00:00"}]}, shape) == []
    for wrong in (
        {"c": []},
        {"a": True, "c": []},
        {"a": 1, "c": [{"d": "noon"}]},
        {"a": 1, "c": [], "x": 1},
        {"c": [], "a": 1},
        {"a": 1, "b": 5, "c": []},
    ):
        assert mismatches(wrong, shape) != []
