"""Logging in and out, against a key service that remembers what it was asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.command_line import CommandLine, FakeClients
from support.file_server import Behaviour, file_server
from tinkex.cli.errors import CliError
from tinkex.cli.outside.key_service import HttpKeyService
from tinkex.client.settings.credentials import (
    ApiKeyDetails,
    ApiKeyOrgDetails,
    ApiKeyUserDetails,
    GeneratedKey,
    JsonCredentialStore,
    ManualKey,
)
from tinkex.client.settings.logins import Logins
from tinkex.wire.limits import HOSTED_URL

DETAILS = {"org_details": {"name": "Acme"}, "user_details": {"email": "ada@acme.test"}}
RECORD = {"key_id": 7, "name": "laptop", "note": None, "details": DETAILS}


class FakeKeyService:
    def __init__(self, problem: str | None = None) -> None:
        self.problem = problem
        self.deleted: list[str] = []
        self.addresses: list[str] = []

    def at(self, address: str) -> FakeKeyService:
        self.addresses.append(address)
        return self

    def describe(self, key: str) -> dict[str, Any]:
        if self.problem:
            raise CliError(self.problem)
        return RECORD

    def delete(self, key: str) -> None:
        if self.problem:
            raise CliError(self.problem)
        self.deleted.append(key)


@pytest.fixture
def store(tmp_path: Path) -> JsonCredentialStore:
    return JsonCredentialStore(tmp_path / "login" / "credentials.json")


def line(store: JsonCredentialStore, service: FakeKeyService, typed: str = "") -> CommandLine:
    extra = {"logins": lambda: Logins(store._path), "key_service": service.at}
    return CommandLine(FakeClients(), typed=typed, extra=extra)


def test_a_pasted_key_is_checked_and_stored(store: JsonCredentialStore, tmp_path: Path) -> None:
    ran = line(store, FakeKeyService(), "tml-secret\n")("auth", "login")
    assert ran.code == 0, ran.err
    assert ran.out == (
        "Logged in as ada@acme.test (Acme). Stored API key 'laptop' as the default credential.\n"
    )
    assert "key_name=tinkex-cli-" in ran.err
    assert "tml-secret" not in ran.out + ran.err
    kept = store.get_default_key()
    assert kept is not None
    assert (kept.key, kept.type) == ("tml-secret", "manual")
    assert (tmp_path / "login" / "credentials.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("typed", "problem", "words"),
    [
        ("\n", None, "The API key must not be empty"),
        ("", None, "Paste your API key: \nError: Aborted."),
        ("tml-x\n", "no such key (HTTP 401 from /me)", "Could not validate the API key"),
    ],
)
def test_a_key_that_will_not_do_is_not_stored(
    store: JsonCredentialStore, typed: str, problem: str | None, words: str
) -> None:
    ran = line(store, FakeKeyService(problem), typed)("auth", "login")
    assert ran.code == 1
    assert words in ran.err
    assert store.get_default_key() is None


def test_a_second_login_is_refused(store: JsonCredentialStore) -> None:
    line(store, FakeKeyService(), "tml-a\n")("auth", "login")
    ran = line(store, FakeKeyService(), "tml-b\n")("auth", "login")
    assert ran.code == 1
    assert "Already logged in" in ran.err
    assert "tinkex auth logout" in ran.err


def test_logging_out_forgets_a_pasted_key_here_only(store: JsonCredentialStore) -> None:
    service = FakeKeyService()
    line(store, service, "tml-a\n")("auth", "login")
    ran = line(store, service)("auth", "logout")
    assert ran.code == 0
    assert "Removed credential 'laptop'. The API key is still active." in ran.out
    assert "Organization: Acme" in ran.out
    assert store.get_default_key() is None
    assert service.deleted == []


def generated(store: JsonCredentialStore) -> None:
    details = ApiKeyDetails(ApiKeyOrgDetails("Acme"), ApiKeyUserDetails("a@b"))
    store.add_key("9", GeneratedKey(key="tml-g", name="old", details=details))
    store.set_default("9")


def test_logging_out_deletes_a_generated_key_on_the_server(store: JsonCredentialStore) -> None:
    generated(store)
    service = FakeKeyService()
    ran = line(store, service)("auth", "logout")
    assert ran.code == 0
    assert "deleted its API key on the server" in ran.out
    assert service.deleted == ["tml-g"]


def test_the_local_record_goes_even_if_the_server_fails(store: JsonCredentialStore) -> None:
    generated(store)
    ran = line(store, FakeKeyService("boom"))("auth", "logout")
    assert ran.code == 1
    assert "Could not delete the API key on the server" in ran.err
    assert store.get_default_key() is None


def test_logging_out_twice_is_an_error(store: JsonCredentialStore) -> None:
    ran = line(store, FakeKeyService())("auth", "logout")
    assert ran.code == 1
    assert "No default credential is stored" in ran.err


def test_status_without_credentials_fails_and_says_so() -> None:
    clients = FakeClients()
    clients.has_credentials = lambda _connection: False
    ran = CommandLine(clients)("auth", "status")
    assert ran.code == 1
    assert ran.out.splitlines()[1:] == ["Credentials available: no"]
    assert "No Tinker credentials are available" in ran.err


def test_the_key_service_speaks_http() -> None:
    answer = json.dumps(RECORD).encode()
    with file_server(Behaviour({"api/v1/auth/apikey/me": answer})) as address:
        assert HttpKeyService(address).describe("tml-x")["name"] == "laptop"
    with (
        file_server(Behaviour({})) as address,
        pytest.raises(CliError, match=r"HTTP 404 from /api/v1/auth/apikey/me"),
    ):
        HttpKeyService(address).describe("tml-x")
    with pytest.raises(CliError, match="Could not reach"):
        HttpKeyService(address).describe("tml-x")


def test_a_manual_key_needs_no_details(store: JsonCredentialStore) -> None:
    store.add_key("1", ManualKey(key="tml-a", name="bare"))
    store.set_default("1")
    assert "Organization" not in line(store, FakeKeyService())("auth", "logout").out


TEAM = "http://team.example:8000"


def test_each_server_has_a_login_of_its_own(store: JsonCredentialStore) -> None:
    service = FakeKeyService()
    line(store, service, "tml-hosted\n")("auth", "login")
    ran = line(store, service, "tml-team\n")("auth", "login", "--base-url", f"{TEAM}/")
    assert ran.code == 0, ran.err
    assert TEAM in ran.out
    assert "Create an API Key" not in ran.err, "the console is the hosted service's"
    assert service.addresses[-1] == TEAM, "checked with the server it is for"
    hosted = store.get_default_key()
    assert hosted is not None
    assert hosted.key == "tml-hosted", "which the official CLI goes on using"
    again = line(store, service, "tml-x\n")("auth", "login", "--base-url", TEAM)
    assert f"Next: tinkex auth logout --base-url {TEAM}" in again.err
    assert Logins(store._path).default_address == TEAM
    out = line(store, service)("auth", "logout")
    assert (out.code, f"Server: {TEAM}" in out.out) == (0, True)
    assert Logins(store._path).addresses() == [HOSTED_URL]
    assert line(store, service)("auth", "logout").code == 0
    assert Logins(store._path).addresses() == []


def test_logging_out_of_the_wrong_server_names_the_right_one(store: JsonCredentialStore) -> None:
    line(store, FakeKeyService(), "tml-team\n")("auth", "login", "--base-url", TEAM)
    ran = line(store, FakeKeyService())("auth", "logout", "--base-url", "http://other:1")
    assert ran.code == 1
    assert f"Next: tinkex auth logout --base-url {TEAM}" in ran.err


def test_the_local_server_needs_no_login(store: JsonCredentialStore) -> None:
    ran = line(store, FakeKeyService(), "tml-x\n")("auth", "login", "--local")
    assert ran.code == 1
    assert "needs no login" in ran.err
