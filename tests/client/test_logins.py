"""A stored key is for one address: it goes there, and nowhere else."""

import stat
from pathlib import Path

import pytest

import tinkex
from support.clients import QUICK
from support.protocol_server import ProtocolServer
from tinkex.client.api.credentials_source import require_stored_key
from tinkex.client.events.bus import EventBus
from tinkex.client.settings.config import DEFAULT_BASE_URL, Config
from tinkex.client.settings.credentials import JsonCredentialStore, ManualKey
from tinkex.client.settings.logins import Login, Logins
from tinkex.wire.limits import HOSTED_URL

TEAM = "https://team.example/api"


def login(key: str) -> Login:
    return Login("7", ManualKey(key=key, name="laptop"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "credentials.json"


def resolve(path: Path, **given: str) -> Config:
    environ = {"TINKEX_CREDENTIALS_FILE": str(path)}
    names = {"base_url": given.pop("base_url", None), "api_key": given.pop("api_key", None)}
    return Config.resolve(environ={**environ, **given}, **names)


def test_logins_are_kept_privately_by_address(path: Path) -> None:
    logins = Logins(path)
    assert (logins.addresses(), logins.default_address) == ([], HOSTED_URL)
    logins.add(TEAM, login("tml-team"))
    logins.add(HOSTED_URL, login("tml-hosted"))
    assert Logins(path).get(TEAM) == login("tml-team")
    assert Logins(path).addresses() == [HOSTED_URL, TEAM]
    servers = path.with_name("servers.json")
    assert stat.S_IMODE(servers.stat().st_mode) == 0o600
    assert "tml-team" not in path.read_text(), "the official CLI would send it to its service"
    assert "team" not in repr(logins.get(TEAM))


def test_the_hosted_login_is_the_official_clis(path: Path) -> None:
    official = pytest.importorskip("tinker.lib.credentials")
    Logins(path).add(HOSTED_URL, login("tml-hosted"))
    assert official.JsonCredentialStore(path).get_default_key().key == "tml-hosted"


def test_a_key_is_found_for_its_own_address_only(path: Path) -> None:
    Logins(path).add(HOSTED_URL, login("tml-hosted"))
    Logins(path).add(TEAM, login("tml-team"))
    assert require_stored_key(resolve(path, base_url=TEAM)) == "tml-team"
    assert require_stored_key(resolve(path, base_url=HOSTED_URL)) == "tml-hosted"
    assert require_stored_key(resolve(path, base_url="http://127.0.0.1:1")) == "tml-local"
    for other in ("http://team.example/api", "https://team.example:8443/api", "https://other"):
        with pytest.raises(tinkex.TinkerError, match=f"auth login --base-url {other}") as caught:
            require_stored_key(resolve(path, base_url=other))
        assert TEAM in str(caught.value), "where there is a login"
        assert "tml-" not in str(caught.value).replace("`tml-`", "")


def test_without_an_address_the_latest_login_decides(path: Path) -> None:
    Logins(path).add(TEAM, login("tml-team"))
    assert resolve(path).base_url == TEAM
    assert resolve(path, TINKER_BASE_URL="https://x").base_url == "https://x"
    assert resolve(path, base_url="local").base_url == "local"
    Logins(path).add(HOSTED_URL, login("tml-hosted"))
    assert resolve(path).base_url == DEFAULT_BASE_URL
    Logins(path).remove(HOSTED_URL)
    assert resolve(path).base_url == DEFAULT_BASE_URL, "logging out goes nowhere else"


def test_a_key_from_elsewhere_does_not_go_to_the_server_of_a_login(path: Path) -> None:
    Logins(path).add(TEAM, login("tml-team"))
    assert resolve(path, api_key="tml-mine").base_url == DEFAULT_BASE_URL
    assert resolve(path, TINKER_API_KEY="tml-mine").base_url == DEFAULT_BASE_URL
    assert resolve(path, TINKER_CREDENTIAL_CMD="print-it").base_url == DEFAULT_BASE_URL


def test_removing_a_login(path: Path) -> None:
    Logins(path).add(TEAM, login("tml-team"))
    Logins(path).remove(TEAM)
    assert (Logins(path).get(TEAM), Logins(path).default_address) == (None, HOSTED_URL)
    for address in (TEAM, HOSTED_URL):
        with pytest.raises(KeyError):
            Logins(path).remove(address)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version":2,"logins":{}}', '{"version":1}'])
def test_a_damaged_file_is_explained(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.with_name("servers.json").write_text(text)
    with pytest.raises(tinkex.TinkerError, match="log in again"):
        Logins(path).get(TEAM)


def test_requests_carry_the_key_of_their_own_server(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKEX_CREDENTIALS_FILE", str(path))
    for name in ("TINKER_API_KEY", "TINKEX_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    JsonCredentialStore(path).add_key("1", ManualKey(key="tml-hosted", name="n"))
    JsonCredentialStore(path).set_default("1")
    with ProtocolServer() as one, ProtocolServer() as other:
        Logins(path).add(one.url, login("tml-one"))
        for server in (one, other):
            config = Config.resolve(
                base_url=server.url, timings=QUICK, telemetry=False, events=EventBus()
            )
            tinkex.RestClient.from_config(config).list_sessions().result(timeout=30)
        assert {r.headers["x-api-key"] for r in one.requests} == {"tml-one"}
        assert {r.headers["x-api-key"] for r in other.requests} == {"tml-local"}
