"""How long the engine waits for a custom loss: for moments, and never most of the time.

A loss is usually evaluated within a few milliseconds, and waiting for it is far cheaper than
repeating the pass. But all other runs wait too. So waits are paid from an account that holds at
most `BURST_S` and fills by `SHARE` of the remaining time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

from tinkex.engine.collectives import agree

BURST_S = 0.1
SHARE = 0.5


class Patience:
    """One engine's account, used by the thread that trains."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._credit = BURST_S
        self._since = clock()

    def wait(self, future: Future[Any]) -> bool:
        """Whether the future is done, after waiting for it as long as the account allows."""
        done = agree(future.done() or self._waited(future))
        if done:
            wait([future])  # where the first rank had it, another may still be at it
        return done

    def _waited(self, future: Future[Any]) -> bool:
        began = self._clock()
        self._credit = min(BURST_S, self._credit + SHARE * (began - self._since))
        wait([future], timeout=self._credit)
        self._since = self._clock()
        self._credit = max(0.0, self._credit - (self._since - began))
        return future.done()
