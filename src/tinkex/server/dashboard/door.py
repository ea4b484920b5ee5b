"""Signing in: one-time links for whoever can read the server's terminal, and a limit on guesses.

Keys have 256 random bits, so guessing is hopeless anyway; the limit tells a clumsy script to stop.
A right key always works: behind a proxy all users have the same address, and one who fails on
purpose must not lock the others out.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict, deque

from tinkex.server.clock import Clock
from tinkex.server.refusals import Busy

INVITATION_S = 24 * 3600.0
MOST_INVITATIONS = 64
GUESSES = 10
GUESSES_S = 60.0
_MOST_ADDRESSES = 1024


class Invitations:
    """Tokens good for one visit, held as hashes while the process lives."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: OrderedDict[str, float] = OrderedDict()

    def issue(self) -> str:
        """A new token; the oldest gives way when too many are open."""
        token = secrets.token_urlsafe(32)
        self._open[_hash(token)] = self._clock.now() + INVITATION_S
        while len(self._open) > MOST_INVITATIONS:
            self._open.popitem(last=False)
        return token

    def redeem(self, token: str) -> bool:
        """Whether the token was good; it is used up now."""
        expires = self._open.pop(_hash(token), None)
        return expires is not None and self._clock.now() < expires


class Guesses:
    """Failed attempts to sign in, by address, within the last minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed: OrderedDict[str, deque[float]] = OrderedDict()

    def check(self, address: str) -> None:
        """Raises `Busy` for an address that has failed too often lately."""
        failed, now = self._failed.get(address), self._clock.monotonic()
        while failed and now - failed[0] >= GUESSES_S:
            failed.popleft()
        if failed and len(failed) >= GUESSES:
            wait = GUESSES_S - (now - failed[0])
            raise Busy(f"too many failed attempts to sign in: wait {wait:.0f} s", wait)

    def failed(self, address: str) -> None:
        """Remember a failure; of too many addresses the one that failed longest ago is let go."""
        self._failed.setdefault(address, deque(maxlen=GUESSES)).append(self._clock.monotonic())
        self._failed.move_to_end(address)
        while len(self._failed) > _MOST_ADDRESSES:
            self._failed.popitem(last=False)


def invitation(address: str, token: str) -> str:
    """The link to a server with a token. What follows a # is not sent, so no log has it."""
    return f"{address}/#invitation={token}"


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
