"""API keys of this server: made once, kept as hashes, revoked at once.

Owns one small JSON file in the home, replaced atomically, so that a running server and the command
line can share it. Knows nothing of HTTP or of what a tenant may do.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import re
import secrets
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tinkex.server.tenancy.tenants import hash_key
from tinkex.wire.limits import API_KEY_PREFIX

FILE_NAME = "keys.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


class KeyProblem(ValueError):
    """A key cannot be made or found. The message says what to change."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key, without its secret."""

    id: str  # public; names the key in lists and for revoking
    name: str  # name of the tenant; keys of one name belong to the same
    sha256: str  # hash of the secret, which is stored nowhere
    created_at: float  # Unix seconds, like those below
    expires_at: float | None = None  # None: never
    revoked_at: float | None = None  # None: it was not
    operator: bool = False  # sees and may end everything, whichever tenant owns it

    def active(self, now: float) -> bool:
        if self.revoked_at is not None:
            return False
        return self.expires_at is None or now < self.expires_at

    def status(self, now: float) -> str:
        """`active`, `revoked` or `expired`."""
        if self.revoked_at is not None:
            return "revoked"
        return "active" if self.active(now) else "expired"


class KeyFile:
    """The keys of one home. Every call sees what other processes wrote."""

    def __init__(self, home: Path) -> None:
        self._path = home / FILE_NAME
        self._stamp: tuple[int, int, int] | None = None
        self._keys: tuple[Key, ...] = ()

    def create(
        self, name: str, expires_in: float | None = None, *, operator: bool = False
    ) -> tuple[Key, str]:
        """A new key for tenant `name` and its secret, which is shown here and stored nowhere."""
        if not _NAME.fullmatch(name):
            raise KeyProblem(
                f"name has {len(name)} characters or unusual ones: use 1 to 64 letters, digits, "
                "'.', '_', '@' or '-', starting with a letter or digit"
            )
        if expires_in is not None and not expires_in > 0:
            raise KeyProblem(f"expires_in is {expires_in}: give a positive number of seconds")
        secret, now = API_KEY_PREFIX + secrets.token_urlsafe(32), time.time()
        expires_at = None if expires_in is None else now + expires_in
        key = Key(secrets.token_hex(4), name, hash_key(secret), now, expires_at, operator=operator)
        with self._locked():
            self._write((*self.list(), key))
        return key, secret

    def list(self) -> tuple[Key, ...]:
        """All keys ever made, revoked and expired ones too, oldest first."""
        stamp = self._read_stamp()
        if stamp != self._stamp:
            self._keys = _decode(self._path) if stamp else ()
            self._stamp = stamp
        return self._keys

    def revoke(self, key_id: str) -> Key:
        """Revoke the key with this id at once. Revoking twice changes nothing."""
        with self._locked():
            for key in self.list():
                if key.id == key_id:
                    return key if key.revoked_at is not None else self._revoke(key)
        raise KeyProblem(f"no key has the id {key_id!r}: see `tinkex keys list`")

    def _revoke(self, key: Key) -> Key:
        revoked = dataclasses.replace(key, revoked_at=time.time())
        self._write(tuple(revoked if other is key else other for other in self.list()))
        return revoked

    def _read_stamp(self) -> tuple[int, int, int] | None:
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return None
        return stat.st_ino, stat.st_mtime_ns, stat.st_size

    def _write(self, keys: tuple[Key, ...]) -> None:
        temporary = self._path.with_suffix(".tmp")
        descriptor = os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump({"keys": [dataclasses.asdict(key) for key in keys]}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class ActiveKeys(Mapping[str, str]):
    """The currently valid keys, as hash → tenant: a view that follows the file."""

    def __init__(self, file: KeyFile) -> None:
        self._file = file

    def __getitem__(self, sha256: str) -> str:
        for known, tenant in self._active():
            if known == sha256:
                return tenant
        raise KeyError(sha256)

    def __iter__(self) -> Iterator[str]:
        return (known for known, _ in self._active())

    def __len__(self) -> int:
        return sum(1 for _ in self._active())

    def _active(self) -> Iterator[tuple[str, str]]:
        now = time.time()
        return ((key.sha256, key.name) for key in self._file.list() if key.active(now))


class OperatorKeys(Collection[str]):
    """The hashes of currently valid operators' keys: a view that follows the file."""

    def __init__(self, file: KeyFile) -> None:
        self._file = file

    def __contains__(self, sha256: object) -> bool:
        return any(known == sha256 for known in self)

    def __iter__(self) -> Iterator[str]:
        now = time.time()
        return (key.sha256 for key in self._file.list() if key.operator and key.active(now))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _decode(path: Path) -> tuple[Key, ...]:
    try:
        return tuple(Key(**entry) for entry in json.loads(path.read_text())["keys"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise KeyProblem(f"{path.name} is not a list of keys; restore it or remove it") from error
