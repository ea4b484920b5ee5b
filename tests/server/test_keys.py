"""Promises of configured API keys."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tinkex.server.refusals import Unauthorized
from tinkex.server.tenancy.keys import FILE_NAME, ActiveKeys, KeyFile, KeyProblem
from tinkex.server.tenancy.tenants import Tenants
from tinkex.wire.limits import LOCAL_API_KEY


def test_a_key_is_shown_once_kept_as_a_hash_and_opens_its_tenant(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path)
    key, secret = keys.create("alice")
    assert secret.startswith("tml-")
    assert opens(tmp_path, secret) == key.name
    stored = (tmp_path / FILE_NAME).read_text()
    assert secret not in stored
    assert secret.removeprefix("tml-") not in stored
    assert stat.S_IMODE((tmp_path / FILE_NAME).stat().st_mode) == 0o600


def test_wrong_revoked_and_expired_keys_open_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = KeyFile(tmp_path)
    first, secret = keys.create("alice")
    brief, short_lived = keys.create("bob", expires_in=60)
    assert opens(tmp_path, secret) == "alice"
    assert opens(tmp_path, secret + "x") is None
    assert opens(tmp_path, "") is None
    assert opens(tmp_path, short_lived) == "bob"
    revoked = keys.revoke(first.id)
    assert opens(tmp_path, secret) is None
    assert keys.revoke(first.id) == revoked
    later = brief.created_at + 61
    assert [key.status(later) for key in keys.list()] == ["revoked", "expired"]
    monkeypatch.setattr("tinkex.server.tenancy.keys.time.time", lambda: later)
    assert opens(tmp_path, short_lived) is None


def test_the_key_that_clients_use_when_given_none_is_told_apart_from_a_wrong_one(
    tmp_path: Path,
) -> None:
    keys = KeyFile(tmp_path)
    keys.create("ada")
    tenants = Tenants(ActiveKeys(keys))
    with pytest.raises(Unauthorized, match=r"this server has keys.*tinkex keys create"):
        tenants.identify(LOCAL_API_KEY)
    with pytest.raises(Unauthorized, match=r"unknown, expired or revoked"):
        tenants.identify("tml-other")


def test_a_running_server_sees_what_the_command_line_changed(tmp_path: Path) -> None:
    server, command_line = Tenants(ActiveKeys(KeyFile(tmp_path))), KeyFile(tmp_path)
    key, secret = command_line.create("alice")
    assert server.identify(secret) == "alice"
    command_line.revoke(key.id)
    with pytest.raises(Unauthorized, match="revoked"):
        server.identify(secret)


def test_the_view_of_active_keys_follows_the_file(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path)
    view = ActiveKeys(KeyFile(tmp_path))
    assert dict(view) == {}
    key, _ = keys.create("alice")
    assert dict(view) == {key.sha256: "alice"}
    keys.revoke(key.id)
    assert len(view) == 0
    assert key.sha256 not in view


@pytest.mark.parametrize("name", ["", "a b", "../x", "ü", "x" * 65, "-a"])
def test_a_bad_name_makes_no_key(tmp_path: Path, name: str) -> None:
    with pytest.raises(KeyProblem, match="1 to 64"):
        KeyFile(tmp_path).create(name)
    assert not (tmp_path / FILE_NAME).exists()


def test_a_bad_expiry_an_unknown_id_and_a_broken_file_say_what_to_do(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path)
    with pytest.raises(KeyProblem, match="positive"):
        keys.create("a", expires_in=0)
    with pytest.raises(KeyProblem, match="tinkex keys list"):
        keys.revoke("nope")
    (tmp_path / FILE_NAME).write_text("{")
    with pytest.raises(KeyProblem, match="restore it or remove it"):
        keys.list()


def opens(home: Path, secret: str) -> str | None:
    """Whose door the secret opens, asked as the server asks."""
    try:
        return Tenants(ActiveKeys(KeyFile(home))).identify(secret)
    except Unauthorized:
        return None
