"""``tinkex.auth``: credentials found on this machine, and one request to see if they work."""

from pathlib import Path

import pytest

import tinkex
from support.protocol_server import ProtocolServer
from support.socket_server import status
from tinkex.client.settings.config import Config
from tinkex.client.settings.credentials import JsonCredentialStore, ManualKey


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import os

    for name in list(os.environ):
        if name.startswith(("TINKER_", "TINKEX_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TINKEX_CREDENTIALS_FILE", str(tmp_path / "credentials.json"))


def test_the_key_comes_from_the_environment_or_the_login(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert tinkex.auth.get_tinker_token() is None
    assert not tinkex.auth.tinker_has_credentials()
    store = JsonCredentialStore(tmp_path / "credentials.json")
    store.add_key("1", ManualKey(key="tml-stored", name="n"))
    store.set_default("1")
    assert tinkex.auth.get_tinker_token() == "tml-stored"
    monkeypatch.setenv("TINKER_API_KEY", "tml-environment")
    assert tinkex.auth.get_tinker_token() == "tml-environment"
    assert tinkex.auth.tinker_has_credentials()


def test_a_server_on_this_machine_needs_no_key_and_others_do() -> None:
    with ProtocolServer() as server:
        assert tinkex.RestClient(base_url=server.url).list_training_runs().result()
        assert {request.headers["x-api-key"] for request in server.requests} == {"tml-local"}
        server.fail("/training_runs", status(401))
        with pytest.raises(tinkex.AuthenticationError, match=r"No API key, .* keys of its own"):
            tinkex.RestClient(base_url=server.url).list_training_runs().result()
    for url in ("http://127.0.0.1:1", "http://localhost:1/prefix", "http://[::1]:1", "local"):
        assert Config.resolve(base_url=url).is_on_this_machine
    with pytest.raises(tinkex.TinkerError, match="No API key"):
        tinkex.RestClient(base_url="http://192.0.2.1:8000").list_training_runs().result()


def test_a_command_counts_without_being_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_CREDENTIAL_CMD", "exit 1")
    assert tinkex.auth.tinker_has_credentials()
    assert tinkex.auth.get_tinker_token() is None


def test_lookup_errors_are_no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "credentials.json").write_text("{")
    assert tinkex.auth.get_tinker_token() is None
    monkeypatch.setenv("TINKER_API_KEY", "bad")
    assert tinkex.auth.get_tinker_token() is None
    assert not tinkex.auth.tinker_has_credentials()


def test_access_is_one_request_that_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(tinkex.TinkerError, match="No API key"):
        tinkex.auth.raise_if_tinker_not_accessible()
    monkeypatch.setenv("TINKER_API_KEY", "tml-x")
    with ProtocolServer() as server:
        monkeypatch.setenv("TINKER_BASE_URL", server.url)
        tinkex.auth.raise_if_tinker_not_accessible()
        for code, error in ((401, tinkex.AuthenticationError), (402, tinkex.BillingError)):
            server.fail("/get_server_capabilities", status(code))
            with pytest.raises(error):
                tinkex.auth.raise_if_tinker_not_accessible()
        assert [r.path for r in server.requests] == ["/api/v1/get_server_capabilities"] * 3
    monkeypatch.setenv("TINKER_BASE_URL", "http://127.0.0.1:9")
    with pytest.raises(tinkex.APIConnectionError):
        tinkex.auth.raise_if_tinker_not_accessible()
    monkeypatch.setenv("TINKER_BASE_URL", "nonsense")
    with pytest.raises(tinkex.TinkerError):
        tinkex.auth.raise_if_tinker_not_accessible()
