"""Waiting out a billing problem (402): work pauses for a while before it fails.

One per client: an incident begins with the first 402 and ends with a good answer, or when none
came for long enough. Knows nothing about requests.
"""

from __future__ import annotations

import logging
import time

from tinkex.client.settings.timings import Timings

logger = logging.getLogger("tinkex")


class BillingPause:
    """How long the present incident lasts, and whether to go on waiting."""

    def __init__(self, timings: Timings) -> None:
        self.window = 3600.0
        self._timings = timings
        self._since: float | None = None
        self._logged = 0.0

    def over(self) -> None:
        """The server does its work again."""
        self._since = None

    def goes_on(self, detail: str) -> bool:
        """Whether a 402 is still within the window in which work waits instead of failing."""
        now = time.monotonic()
        quiet = now - self._logged >= self._timings.billing_incident_reset
        if self._since is None or quiet:
            self._since = now
        if now - self._since >= min(self.window, self._timings.billing_window):
            return False
        if now - self._logged >= self._timings.billing_log_interval:
            self._logged = now
            logger.warning("Paused: the server reports a billing problem: %s", detail)
        return True
