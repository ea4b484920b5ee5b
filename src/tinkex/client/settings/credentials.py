"""Stored logins: the credential file and the records in it.

Same file, shape and permissions as the official CLI (``~/.tinker/credentials.json``), so a login
made with either works with both. Knows nothing about requests or environment variables.
"""

from __future__ import annotations

import json
import os
import tempfile
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from tinkex.client.errors import TinkerError


@dataclass(frozen=True)
class ApiKeyOrgDetails:
    name: str


@dataclass(frozen=True)
class ApiKeyUserDetails:
    email: str


@dataclass(frozen=True)
class ApiKeyDetails:
    """Who a key belongs to, as the server reported it at login."""

    org_details: ApiKeyOrgDetails
    user_details: ApiKeyUserDetails

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> ApiKeyDetails:
        return cls(
            ApiKeyOrgDetails(value["org_details"]["name"]),
            ApiKeyUserDetails(value["user_details"]["email"]),
        )


@dataclass(frozen=True, kw_only=True)
class ManualKey:
    """A key the user made in the console and pasted at login."""

    key: str = field(repr=False)
    name: str
    note: str | None = None
    details: ApiKeyDetails | None = None
    type: Literal["manual"] = "manual"


@dataclass(frozen=True, kw_only=True)
class GeneratedKey:
    """A key an older CLI created at login; logging out also deletes it on the server."""

    key: str = field(repr=False)
    name: str
    details: ApiKeyDetails
    type: Literal["generated"] = "generated"


KeyRecord = ManualKey | GeneratedKey


@dataclass(frozen=True, kw_only=True)
class StoredCredentialsV1:
    """The whole file: records by key id, and which of them is used by default."""

    keys: dict[str, KeyRecord] = field(default_factory=dict)
    default: str | None = None
    version: Literal[1] = 1

    def to_json(self) -> str:
        value = {
            "version": self.version,
            "default": self.default,
            "keys": {key_id: written_record(record) for key_id, record in self.keys.items()},
        }
        return json.dumps(_without_none(value), indent=2)

    @classmethod
    def from_json(cls, text: str) -> StoredCredentialsV1:
        value = json.loads(text)
        if value.get("version") != 1:
            raise ValueError(f"version {value.get('version')!r} is not supported, expected 1")
        return cls(
            keys={key_id: read_record(item) for key_id, item in value["keys"].items()},
            default=value.get("default"),
        )


def default_credentials_path() -> Path:
    return Path.home() / ".tinker" / "credentials.json"


class CredentialStore(ABC):
    """Where logins are kept."""

    @abstractmethod
    def add_key(self, key_id: str, record: KeyRecord) -> None: ...

    @abstractmethod
    def delete_key(self, key_id: str) -> None:
        """Forget a key, and the default if it was that one. KeyError if there is none."""

    @abstractmethod
    def set_default(self, key_id: str | None) -> None:
        """Choose the key used by default, or none. KeyError if there is no such key."""

    @abstractmethod
    def get_key(self, key_id: str) -> KeyRecord | None: ...

    @abstractmethod
    def get_default_key(self) -> KeyRecord | None: ...

    @abstractmethod
    def get_default_key_id(self) -> str | None: ...


class JsonCredentialStore(CredentialStore):
    """A store in one JSON file: directory 0700, file 0600, replaced whole on every change."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def add_key(self, key_id: str, record: KeyRecord) -> None:
        current = self._load()
        self._save(
            StoredCredentialsV1(keys={**current.keys, key_id: record}, default=current.default)
        )

    def delete_key(self, key_id: str) -> None:
        current = self._load()
        keys = dict(current.keys)
        del keys[key_id]
        default = None if current.default == key_id else current.default
        self._save(StoredCredentialsV1(keys=keys, default=default))

    def set_default(self, key_id: str | None) -> None:
        current = self._load()
        if key_id is not None and key_id not in current.keys:
            raise KeyError(key_id)
        self._save(StoredCredentialsV1(keys=current.keys, default=key_id))

    def get_key(self, key_id: str) -> KeyRecord | None:
        return self._load().keys.get(key_id)

    def get_default_key(self) -> KeyRecord | None:
        current = self._load()
        return None if current.default is None else current.keys.get(current.default)

    def get_default_key_id(self) -> str | None:
        return self._load().default

    def _load(self) -> StoredCredentialsV1:
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return StoredCredentialsV1()
        try:
            return StoredCredentialsV1.from_json(text)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TinkerError(
                f"The credential file {self._path} cannot be read "
                f"({type(error).__name__}). Move it away and log in again."
            ) from None

    def _save(self, credentials: StoredCredentialsV1) -> None:
        write_privately(self._path, credentials.to_json())


def write_privately(path: Path, text: str) -> None:
    """Replace a file whole: directory 0700, file 0600."""
    directory = path.parent
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=directory, prefix=".credentials-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:  # mkstemp made it 0600
            file.write(text)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def written_record(record: KeyRecord) -> dict[str, Any]:
    """A record as it stands in a file."""
    written: dict[str, Any] = _without_none(asdict(record))
    return written


def read_record(value: dict[str, Any]) -> KeyRecord:
    """A record from a file; ValueError, KeyError or TypeError when it is none."""
    details = ApiKeyDetails.from_dict(value["details"]) if value.get("details") else None
    if value["type"] == "manual":
        return ManualKey(
            key=value["key"], name=value["name"], note=value.get("note"), details=details
        )
    if value["type"] == "generated" and details is not None:
        return GeneratedKey(key=value["key"], name=value["name"], details=details)
    raise ValueError(f"unknown key type {value['type']!r}")


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value
