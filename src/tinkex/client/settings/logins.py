"""Logins by address: which key was stored for which server, and where plain commands go.

A key is for the address it was stored for and for no other. The login of the hosted service is the
default key of the file that the official CLI shares (``credentials``); those of other servers are
in ``servers.json`` beside it, which only we read: the official CLI would send them to the hosted
service.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tinkex.client.errors import TinkerError
from tinkex.client.settings.credentials import (
    JsonCredentialStore,
    KeyRecord,
    default_credentials_path,
    read_record,
    write_privately,
    written_record,
)
from tinkex.wire.limits import HOSTED_URL

SERVERS_FILE = "servers.json"


@dataclass(frozen=True)
class Login:
    """A key that was stored for one server."""

    key_id: str
    record: KeyRecord


@dataclass(frozen=True)
class _Servers:
    """The content of ``servers.json``. ``default`` None is the hosted service."""

    logins: dict[str, Login] = field(default_factory=dict)
    default: str | None = None


class Logins:
    """The stored logins of a user; addresses are normalised URLs."""

    def __init__(self, credentials_path: Path | None) -> None:
        path = credentials_path or default_credentials_path()
        self._hosted = JsonCredentialStore(path)
        self._file = path.with_name(SERVERS_FILE)

    @property
    def default_address(self) -> str:
        """Where a command goes that names no address: the latest login's server."""
        servers = self._load()
        return HOSTED_URL if servers.default is None else servers.default

    def addresses(self) -> list[str]:
        """Every address with a login, the hosted service first."""
        hosted = [HOSTED_URL] if self.get(HOSTED_URL) else []
        return [*hosted, *sorted(self._load().logins)]

    def get(self, address: str) -> Login | None:
        """The login for this address, and only for this."""
        if address != HOSTED_URL:
            return self._load().logins.get(address)
        key_id, record = self._hosted.get_default_key_id(), self._hosted.get_default_key()
        return None if key_id is None or record is None else Login(key_id, record)

    def add(self, address: str, login: Login) -> None:
        """Store a login; plain commands go to its server from now on."""
        servers = self._load()
        if address != HOSTED_URL:
            self._save(_Servers({**servers.logins, address: login}, address))
            return
        self._hosted.add_key(login.key_id, login.record)
        self._hosted.set_default(login.key_id)
        if servers.default is not None:
            self._save(replace(servers, default=None))

    def remove(self, address: str) -> None:
        """Forget a login. KeyError if there is none."""
        login = self.get(address)
        if login is None:
            raise KeyError(address)
        if address == HOSTED_URL:
            self._hosted.delete_key(login.key_id)
            return
        servers = self._load()
        rest = {known: each for known, each in servers.logins.items() if known != address}
        self._save(_Servers(rest, None if servers.default == address else servers.default))

    def _load(self) -> _Servers:
        try:
            text = self._file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return _Servers()
        try:
            return _read(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TinkerError(
                f"The login file {self._file} cannot be read ({type(error).__name__}). Move it "
                "away and log in again."
            ) from None

    def _save(self, servers: _Servers) -> None:
        logins = {
            address: {"key_id": login.key_id, **written_record(login.record)}
            for address, login in servers.logins.items()
        }
        value = {"version": 1, "default": servers.default, "logins": logins}
        write_privately(self._file, json.dumps(value, indent=2))


def stored_key(credentials_path: Path | None, address: str = HOSTED_URL) -> str | None:
    """The key that a login stored for this address."""
    login = Logins(credentials_path).get(address)
    return None if login is None else login.record.key


def _read(value: dict[str, Any]) -> _Servers:
    if value["version"] != 1:
        raise ValueError(f"version {value['version']!r} is not supported, expected 1")
    logins = {
        address: Login(str(item["key_id"]), read_record(item))
        for address, item in value["logins"].items()
    }
    default = value.get("default")
    return _Servers(logins, default if default in logins else None)
