"""An empty list says whose it is, and where the others' runs are."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.command_line import CommandLine, FakeClients, done
from tinkex.cli.listings.emptiness import masked
from tinkex.server.storage.home import Home


class _Rest:
    def __init__(self, total: int) -> None:
        self._page = SimpleNamespace(training_runs=[], cursor=SimpleNamespace(total_count=total))

    def list_training_runs(self, **_: Any) -> Any:
        return done(self._page)


class _Clients(FakeClients):
    """A server where one key has no runs and the home, asked as its owner, may have some."""

    def __init__(self, in_home: int, address: str = "http://127.0.0.1:8123") -> None:
        super().__init__(rest=_Rest(0), address=address)
        self._in_home = in_home

    def rest(self, connection: Any) -> Any:
        return _Rest(self._in_home) if connection.base_url == "local" else super().rest(connection)


def asked(clients: FakeClients, *flags: str) -> str:
    return CommandLine(clients)("run", "list", *flags).err


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TINKEX_HOME", str(tmp_path / "home"))
    home = Home(tmp_path / "home", "http://127.0.0.1:8123")
    yield home
    home.release()


def test_an_empty_list_names_server_and_key_without_giving_the_key_away() -> None:
    said = asked(_Clients(0), "--api-key", "tml-0123456789abcdef")
    assert "Asked http://127.0.0.1:8123 with the key tml-…cdef." in said
    assert "0123456789" not in said


@pytest.mark.usefixtures("served")
def test_runs_of_other_keys_in_ones_own_home_are_pointed_at() -> None:
    assert "Other keys have runs there. Add --local" in asked(_Clients(2))
    assert "Other keys" not in asked(_Clients(0))
    assert "Other keys" not in asked(_Clients(2, "http://elsewhere:8123"))


def test_a_program_that_reads_and_the_owner_of_the_home_are_told_nothing() -> None:
    assert asked(_Clients(0), "--json") == ""
    assert asked(_Clients(0), "--local") == ""


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("tml-local", "tml-local"),
        ("None", "tml-local"),
        ("tml-short", "tml-…"),
        ("tml-0123456789abcdef", "tml-…cdef"),
    ],
)
def test_a_key_is_shown_as_far_as_it_is_no_secret(key: str, shown: str) -> None:
    assert masked(key) == shown
