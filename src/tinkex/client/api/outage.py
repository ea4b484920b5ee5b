"""Reports that a server does not answer, or puts calls off, while the SDK keeps trying, so that
nobody wonders why nothing happens. Knows nothing about requests or retries.
"""

from __future__ import annotations

import logging
import time

from tinkex.client.settings.timings import Timings

logger = logging.getLogger("tinkex")


class Outage:
    """Logs when a server has not answered for a while, then now and again, and when it is back."""

    def __init__(self, address: str, log_after: float, log_interval: float) -> None:
        self._address = address
        self._log_after = log_after
        self._log_interval = log_interval
        self._since: float | None = None
        self._logged_at: float | None = None

    @property
    def is_on(self) -> bool:
        """Whether the last attempt got no answer."""
        return self._since is not None

    def failed(self, started: float, reason: str) -> None:
        """An attempt begun at `started`, by the monotonic clock, got no answer."""
        if self._since is None:
            self._since = started
        now = time.monotonic()
        quiet_until = (
            self._since + self._log_after
            if self._logged_at is None
            else self._logged_at + self._log_interval
        )
        if now >= quiet_until:
            self._logged_at = now
            logger.warning(
                "%s has not answered for %.0f s (%s); still trying. Is the server running?",
                self._address,
                now - self._since,
                reason.rpartition(": ")[2],
            )

    def over(self) -> None:
        """An answer arrived."""
        if self._since is None:
            return
        if self._logged_at is not None:
            logger.warning(
                "%s answers again after %.0f s", self._address, time.monotonic() - self._since
            )
        self._since = self._logged_at = None


class PutOff:
    """Logs why a server has put a call off for a while, however many calls: now and again."""

    def __init__(self, address: str, timings: Timings) -> None:
        self._address = address
        self._log_after = timings.put_off_log_after
        self._log_interval = timings.queue_log_interval
        self._logged_at = float("-inf")

    def again(self, since: float, reason: str) -> None:
        """A call that began at `since`, by the monotonic clock, was told to come again."""
        now = time.monotonic()
        if now - since < self._log_after or now - self._logged_at < self._log_interval:
            return
        self._logged_at = now
        logger.warning(
            "%s has put a call off for %.0f s (%s); still trying",
            self._address,
            now - since,
            reason,
        )
