"""The keys of one's own server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.command_line import CommandLine, Ran
from support.json_shape import mismatches, shapes


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def keys(home: Path, *words: str) -> Ran:
    return CommandLine()("keys", *words, "--home", str(home))


def test_a_key_is_shown_once_and_kept_as_a_hash(home: Path) -> None:
    ran = keys(home, "create", "ada")
    assert ran.code == 0, ran.err
    secret = ran.out.strip()
    assert secret.startswith("tml-")
    assert secret not in (home / "keys.json").read_text()
    listed = keys(home, "list")
    assert "ada" in listed.out
    assert "active" in listed.out
    assert secret not in listed.out + listed.err


def test_the_first_key_says_that_one_is_asked_for_from_now_on(home: Path) -> None:
    said = "the server asks for a key, on this machine too"
    assert said in keys(home, "create", "ada").err
    assert said not in keys(home, "create", "bob").err


def test_a_revoked_key_is_listed_as_such(home: Path) -> None:
    made = json.loads(keys(home, "create", "ada", "--expires-in", "24h", "--json").out)
    assert mismatches(made, shapes()["keys create"]) == []
    facts = ["id", "name", "operator", "created_at", "expires_at", "revoked_at", "key"]
    assert list(made) == facts
    assert keys(home, "revoke", made["id"]).out == f"Revoked key {made['id']} of ada\n"
    listed = json.loads(keys(home, "list", "--json").out)
    assert mismatches(listed, shapes()["keys list"]) == []
    (record,) = listed["keys"]
    assert record["status"] == "revoked"
    assert "key" not in record


@pytest.mark.parametrize(
    ("words", "message"),
    [(["revoke", "none"], "Could not revoke the key"), (["create", "a b"], "Could not create")],
)
def test_what_cannot_be_done_is_one_line(home: Path, words: list[str], message: str) -> None:
    ran = keys(home, *words)
    assert ran.code == 1
    assert message in ran.err


def test_a_damaged_key_file_is_explained(home: Path) -> None:
    home.mkdir()
    (home / "keys.json").write_text("nonsense")
    ran = keys(home, "list")
    assert ran.code == 1
    assert "keys.json" in ran.err
