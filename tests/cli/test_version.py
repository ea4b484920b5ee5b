"""Which tinkex this is: its version, and its own commit or none."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from support.command_line import CommandLine
from support.json_shape import mismatches, shapes
from tinkex.cli.line import version as module

ROOT = Path(__file__).parents[2]


def test_the_version_is_that_of_the_installed_package() -> None:
    ran = CommandLine()("version", "--json", "--deps")
    value = json.loads(ran.out)
    assert mismatches(value, shapes()["version"]) == []
    assert value["version"] == version("tinkex")
    assert value["deps"] == {name: version(name) for name in module.RUNTIME_DEPENDENCIES}
    assert CommandLine()("--version").out == CommandLine()("version").out


@pytest.mark.skipif(not (ROOT / ".git").is_dir(), reason="not a checkout")
def test_a_checkout_says_its_commit() -> None:
    line = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    commit = subprocess.run(line, capture_output=True, text=True, check=True).stdout[:7]
    assert json.loads(CommandLine()("version", "--json").out)["commit"] == commit


def test_a_packed_branch_is_found(tmp_path: Path) -> None:
    (tmp_path / "HEAD").write_text("ref: refs/heads/main\n")
    assert module._head(str(tmp_path)) is None
    (tmp_path / "packed-refs").write_text(f"# pack\n{'a' * 40} refs/heads/main\n")
    assert module._head(str(tmp_path)) == "aaaaaaa"
    (tmp_path / "HEAD").write_text("b" * 40)
    assert module._head(str(tmp_path)) == "bbbbbbb"


@pytest.mark.parametrize("folder", ["env/site-packages", "src"])
def test_inside_another_project_the_commit_is_null(tmp_path: Path, folder: str) -> None:
    """The package is installed into, or was copied into, someone else's repository."""
    packages = tmp_path / "project" / folder
    shutil.copytree(ROOT / "src" / "tinkex" / "cli", packages / "tinkex" / "cli")
    (packages / "tinkex" / "__init__.py").touch()
    git = tmp_path / "project" / ".git"
    git.mkdir()
    (git / "HEAD").write_text("c" * 40)
    (tmp_path / "project" / "pyproject.toml").write_text('[project]\nname = "theirs"\n')
    done = subprocess.run(
        [sys.executable, "-S", "-m", "tinkex.cli", "version", "--json"],
        cwd=tmp_path / "project",
        env={"PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == {"version": "unknown", "commit": None}
