"""A home knows where its servers had each model from, for as long as the folder is there."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from tinkex.server.settings import ModelSpec, Settings
from tinkex.server.storage.home_models import folder_of, remember


def _model(folder: Path) -> str:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return str(folder)


def test_what_was_served_is_known_until_it_is_gone_or_served_from_elsewhere(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    assert folder_of(home, "a") is None
    remember(home, {"a": _model(tmp_path / "one"), "built-in": "tinkex/tiny-llama"})
    remember(home, {"b": _model(tmp_path / "two")})
    assert (folder_of(home, "a"), folder_of(home, "b")) == (tmp_path / "one", tmp_path / "two")
    assert folder_of(home, "built-in") is None
    remember(home, {"a": str(tmp_path / "two")})
    assert folder_of(home, "a") == tmp_path / "two"
    (tmp_path / "two" / "config.json").unlink()
    assert folder_of(home, "a") is None
    (home / "models.json").write_text("no json")
    assert folder_of(home, "b") is None


def test_a_models_other_names_are_known_too(tmp_path: Path) -> None:
    """As a folder has that is called like a model scripts name: runs are stored under either."""
    specs = (ModelSpec("Qwen3.6-35B-A3B", _model(tmp_path / "one")),)
    aliases = {"Qwen/Qwen3.6-35B-A3B": "Qwen3.6-35B-A3B", "gone": "not-served"}
    remember(tmp_path, Settings(tmp_path, specs, aliases=aliases).sources)
    assert folder_of(tmp_path, "Qwen/Qwen3.6-35B-A3B") == tmp_path / "one"
    assert folder_of(tmp_path, "gone") is None


def test_a_home_that_takes_no_file_more_keeps_no_server_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    remember(tmp_path, {"a": _model(tmp_path / "one")})
    monkeypatch.setattr(os, "replace", full)
    remember(tmp_path, {"a": _model(tmp_path / "two")})
    assert folder_of(tmp_path, "a") == tmp_path / "one"
