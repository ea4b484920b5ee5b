"""Authentication: an API key in, a tenant's id out. Keys are only ever held as hashes.

On loopback any well-formed key is a tenant of its own. Elsewhere keys are configured: the hash of
the presented key is compared with every configured hash, in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Container, Mapping

from tinkex.server.refusals import Unauthorized
from tinkex.wire.limits import API_KEY_PREFIX, KEY_PREFIXES, LOCAL_API_KEY

OWNERS_PLACE = ("local", 80)
"""The server name of a request that comes from a process of the home's owner: this process, or one
at the home's socket. No request over a network can have it."""

_KEY_LIMIT = 8192


class Tenants:
    """`keys` maps key hashes to tenant ids; None accepts any well-formed key as its own tenant.
    `operators` are the hashes of keys whose holders manage everything."""

    def __init__(self, keys: Mapping[str, str] | None, operators: Container[str] = ()) -> None:
        self._keys = keys
        self._operators = operators

    def identify(self, key: str | None, *, is_owner: bool = False) -> str:
        """The tenant of a key, or `Unauthorized`. The home's owner needs no known key."""
        if not key:
            raise Unauthorized(
                "no API key: send it in the X-API-Key header, or as Authorization: Bearer KEY"
            )
        if len(key) > _KEY_LIMIT or not key.startswith(KEY_PREFIXES):
            raise Unauthorized(f"malformed API key: keys begin with {API_KEY_PREFIX!r}")
        return self.of_digest(hash_key(key), is_owner=is_owner)

    def is_operator(self, digest: str) -> bool:
        """Whether the key with this hash is an operator's, and still good."""
        return digest in self._operators and self._configured(digest) is not None

    def of_digest(self, digest: str, *, is_owner: bool = False) -> str:
        """The tenant of the key with this hash, or `Unauthorized`."""
        tenant = self._configured(digest)
        if tenant is None and (is_owner or self._keys is None):
            return f"key-{digest[:16]}"
        if tenant is None and digest == hash_key(LOCAL_API_KEY):
            raise Unauthorized(
                f"this server has keys, and {LOCAL_API_KEY} opens only one without: ask for a "
                "key, or make one with `tinkex keys create NAME`"
            )
        if tenant is None:
            raise Unauthorized("unknown, expired or revoked API key")
        return tenant

    def _configured(self, digest: str) -> str | None:
        found = None
        for known, tenant in (self._keys or {}).items():
            if hmac.compare_digest(known, digest):
                found = tenant
        return found


def hash_key(key: str) -> str:
    """The only form in which a key is stored or compared. Keys are random, so no salt is needed."""
    return hashlib.sha256(key.encode()).hexdigest()
