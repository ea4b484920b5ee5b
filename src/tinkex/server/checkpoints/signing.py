"""Signed, expiring links to one path.

The signature covers the path, the tenant it was made for and the second it expires, so a link
cannot be used for anything else. Knows no routes: the caller says what a path means.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlencode

LINK_FIELDS = ("expires", "tenant", "signature")
_KEY_BYTES = 32
_LONGEST_TIME = 15


class SignatureRefused(Exception):
    """A link is forged, altered, incomplete or expired. The message says which."""


class Signer:
    """Makes and checks links with one secret key."""

    def __init__(self, key: bytes) -> None:
        if len(key) < _KEY_BYTES:
            raise ValueError(f"a signing key has {_KEY_BYTES} bytes, this one {len(key)}")
        self._key = key

    @classmethod
    def from_file(cls, path: Path) -> Signer:
        """The key kept in `path`, made on first use and readable by its owner only."""
        return cls(_load_or_create(path))

    def link(self, path: str, tenant: str, expires: int) -> str:
        """`path` (unquoted) with its signature, valid until the Unix second `expires`."""
        query = {
            "expires": expires,
            "tenant": tenant,
            "signature": self._mac(path, tenant, expires),
        }
        return f"{quote(path, safe='/:')}?{urlencode(query)}"

    def check(self, path: str, query: Mapping[str, str], now: float | None = None) -> str:
        """The tenant a link to `path` was made for; raises `SignatureRefused`."""
        tenant, expires = query.get("tenant", ""), query.get("expires", "")
        readable = expires.isascii() and expires.isdigit() and len(expires) <= _LONGEST_TIME
        if not readable or "signature" not in query:
            raise SignatureRefused(
                "the link is not signed: expires, tenant and signature are needed"
            )
        expected = self._mac(path, tenant, int(expires))
        if not hmac.compare_digest(expected.encode(), query["signature"].encode()):
            raise SignatureRefused("the link was changed: its signature does not fit its path")
        if (time.time() if now is None else now) >= int(expires):
            raise SignatureRefused("the link has expired: ask for a new one")
        return tenant

    def mac(self, purpose: str, text: str) -> str:
        """The signature of a text that is not a link. `purpose` separates one use from another."""
        key = hmac.new(self._key, purpose.encode(), hashlib.sha256).digest()
        return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()

    def _mac(self, path: str, tenant: str, expires: int) -> str:
        # Lengths keep the parts apart: no two different triples give the same message.
        message = f"{len(path)}:{path}{len(tenant)}:{tenant}{expires}"
        return hmac.new(self._key, message.encode(), hashlib.sha256).hexdigest()


def _load_or_create(path: Path) -> bytes:
    """Load the key or make one. One that is too short was cut off by a full disk: nothing was ever
    signed with it."""
    if path.exists() and len(found := path.read_bytes()) >= _KEY_BYTES:
        return found
    key, draft = secrets.token_bytes(_KEY_BYTES), path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    return key
