"""The credential file: shape, permissions, and the official CLI's own reading of it."""

import json
import stat
from pathlib import Path

import pytest

from tinkex.client.errors import TinkerError
from tinkex.client.settings.credentials import (
    ApiKeyDetails,
    ApiKeyOrgDetails,
    ApiKeyUserDetails,
    GeneratedKey,
    JsonCredentialStore,
    ManualKey,
)
from tinkex.client.settings.logins import stored_key

DETAILS = ApiKeyDetails(ApiKeyOrgDetails("org"), ApiKeyUserDetails("me@example.com"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "credentials.json"


def test_a_login_is_kept_privately_and_read_back(path: Path) -> None:
    store = JsonCredentialStore(path)
    record = ManualKey(key="tml-secret", name="laptop", details=DETAILS)
    store.add_key("7", record)
    store.set_default("7")
    assert JsonCredentialStore(path).get_default_key() == record
    assert store.get_default_key_id() == "7"
    assert stored_key(path) == "tml-secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [p.name for p in path.parent.iterdir()] == ["credentials.json"]
    assert "secret" not in repr(record)


def test_the_file_has_the_documented_shape(path: Path) -> None:
    store = JsonCredentialStore(path)
    store.add_key("7", ManualKey(key="tml-a", name="n"))
    text = path.read_text()
    assert json.loads(text) == {
        "version": 1,
        "keys": {"7": {"type": "manual", "key": "tml-a", "name": "n"}},
    }
    assert text.startswith('{\n  "version"')


def test_the_official_store_reads_ours_and_we_read_its(path: Path) -> None:
    official = pytest.importorskip("tinker.lib.credentials")
    JsonCredentialStore(path).add_key("7", ManualKey(key="tml-a", name="n", note="x"))
    theirs = official.JsonCredentialStore(path)
    assert theirs.get_key("7").key == "tml-a"
    theirs.add_key("8", official.ManualKey(key="tml-b", name="m"))
    theirs.set_default("8")
    assert stored_key(path) == "tml-b"


def test_deleting_the_default_clears_it(path: Path) -> None:
    store = JsonCredentialStore(path)
    store.add_key("7", GeneratedKey(key="tml-a", name="n", details=DETAILS))
    store.set_default("7")
    store.delete_key("7")
    assert store.get_default_key() is None
    assert store.get_key("7") is None
    for change in (lambda: store.delete_key("7"), lambda: store.set_default("7")):
        with pytest.raises(KeyError):
            change()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version":2,"keys":{}}', '{"version":1}'])
def test_a_damaged_file_is_explained(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(TinkerError, match="log in again"):
        stored_key(path)


def test_no_file_means_no_key(path: Path) -> None:
    assert stored_key(path) is None
