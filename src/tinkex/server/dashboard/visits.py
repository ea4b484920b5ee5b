"""Visits: who signed in with a browser, as a signed cookie that is worth nothing by itself.

Browsers send cookies to every port of a host, so another user's service on this machine may see
ours. A visit therefore has two halves: the cookie, which scripts cannot read, and a secret that
only pages of this very origin can read, sent with every request as a header. Neither opens anything
alone, and a header is what a foreign page cannot send: forged requests fail for the same reason.

Nothing is kept here: a visit outlives the server's restarts and ends with the key it was made with.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import NamedTuple

from tinkex.server.checkpoints.signing import Signer
from tinkex.server.clock import Clock

VISIT_S = 7 * 86_400
PAGE_HEADER = "x-tinkex-page"
_PURPOSE = "visit"
_LONGEST = 512


class Visit(NamedTuple):
    """`digest` is the hash of the key that was shown; `invited` visitors came by a link that the
    server's own terminal printed, and have the rights of the home's owner."""

    digest: str
    invited: bool


class Visits:
    """Makes and reads cookies with the home's signing key."""

    def __init__(self, signer: Signer, clock: Clock) -> None:
        self._signer = signer
        self._clock = clock
        self.cookie = f"tinkex-{signer.mac('cookie name', '')[:8]}"
        """Other servers on this host have other names for theirs."""

    def begin(self, visit: Visit) -> tuple[str, str]:
        """The cookie's value and the page's secret of a new visit."""
        secret = secrets.token_urlsafe(32)
        expires = int(self._clock.now()) + VISIT_S
        text = f"{visit.digest}.{int(visit.invited)}.{expires}.{_half(secret)}"
        return f"{text}.{self._signer.mac(_PURPOSE, text)}", secret

    def read(self, cookie: str | None, secret: str | None) -> Visit | None:
        """The visit that both halves belong to; None for anything else, and for an expired one."""
        if not cookie or not secret or len(cookie) > _LONGEST or len(secret) > _LONGEST:
            return None
        text, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(self._signer.mac(_PURPOSE, text).encode(), signature.encode()):
            return None
        digest, invited, expires, half = text.split(".")
        if not hmac.compare_digest(half, _half(secret)) or self._clock.now() >= int(expires):
            return None
        return Visit(digest, invited == "1")


def _half(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
