"""The rate limiter shared by everything that uses one (URL, key) pair.

After the server said "not before t", no call with that key to that URL leaves before t. Without
such an answer nothing ever waits. Other keys and other URLs are untouched.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from weakref import WeakValueDictionary


class RateLimiter:
    """A point in time before which nothing may be sent. Safe to use from any thread."""

    def __init__(self) -> None:
        self._until = 0.0

    def hold(self, seconds: float) -> None:
        """Keep everybody away for this long; a longer hold already in force stays."""
        self._until = max(self._until, time.monotonic() + seconds)

    @property
    def remaining(self) -> float:
        return max(0.0, self._until - time.monotonic())

    async def wait(self) -> float:
        """Return once calls are allowed; the answer is the seconds it took."""
        waited = 0.0
        while (remaining := self.remaining) > 0:
            await asyncio.sleep(remaining)
            waited += remaining
        return waited


_limiters: WeakValueDictionary[tuple[str, str], RateLimiter] = WeakValueDictionary()
_lock = threading.Lock()


def shared_limiter(normalised_url: str, credential: str) -> RateLimiter:
    """The limiter of this (URL, credential); it lives as long as somebody holds it."""
    # The credential itself must not sit in a process-wide table.
    identity = (normalised_url, hashlib.sha256(credential.encode()).hexdigest())
    with _lock:
        limiter = _limiters.get(identity)
        if limiter is None:
            limiter = _limiters[identity] = RateLimiter()
        return limiter
