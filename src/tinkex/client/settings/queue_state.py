"""Reports why a future waits: to an observer, as an event, and as a log line once in a while."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from enum import Enum
from typing import TYPE_CHECKING

from tinkex.client.events.bus import QUEUE_STATE_CHANGE
from tinkex.wire.limits import QUEUE_ACTIVE, QUEUE_PAUSED_CAPACITY, QUEUE_PAUSED_RATE_LIMIT

if TYPE_CHECKING:
    from tinkex.client.settings.config import Config

logger = logging.getLogger("tinkex")

CAPACITY_REASON = "the server is running short on capacity"
TRAINING_RATE_REASON = "concurrent training clients rate limit hit"
SAMPLING_RATE_REASON = "concurrent sampler weights limit hit"


class QueueState(Enum):
    """What the server says about a request that is not done yet."""

    ACTIVE = QUEUE_ACTIVE
    PAUSED_RATE_LIMIT = QUEUE_PAUSED_RATE_LIMIT
    PAUSED_CAPACITY = QUEUE_PAUSED_CAPACITY
    UNKNOWN = "unknown"

    @classmethod
    def parse(cls, text: object) -> QueueState:
        """The state of this name; unknown for one nobody knows."""
        try:
            return cls(text)
        except ValueError:
            return cls.UNKNOWN


class QueueStateObserver(ABC):
    """Told why results are late: subclass it, and give it to ``ServiceClient`` or ``Config``.

    Called on the SDK's thread for every pending answer, so it must be quick and must not block.
    """

    @abstractmethod
    def on_queue_state_change(
        self, queue_state: QueueState, queue_state_reason: str | None
    ) -> None:
        """Something waits in this state; there is a reason when it is paused."""


class QueueReporter(QueueStateObserver):
    """Emits an event when the state changes and logs pauses at most once per interval."""

    def __init__(self, subject: str, rate_reason: str, config: Config) -> None:
        self._subject = subject
        self._rate_reason = rate_reason
        self._bus = config.events
        self._log_interval = config.timings.queue_log_interval
        self._observer = config.queue_state_observer
        self._state: QueueState | None = None
        self._logged_at: float | None = None
        self._observer_failed = False

    def on_queue_state_change(
        self, queue_state: QueueState, queue_state_reason: str | None
    ) -> None:
        reason = self._reason(queue_state, queue_state_reason)
        self._tell_observer(queue_state, reason)
        if queue_state is not self._state:
            self._state = queue_state
            self._bus.emit(
                QUEUE_STATE_CHANGE, subject=self._subject, state=queue_state.value, reason=reason
            )
        if reason is None:
            return
        now = time.monotonic()
        if self._logged_at is None or now - self._logged_at >= self._log_interval:
            self._logged_at = now
            logger.warning("%s is paused. Reason: %s.", self._subject, reason)

    def _reason(self, state: QueueState, given: str | None) -> str | None:
        """Why it is paused; work that goes on has no reason to wait."""
        if state is QueueState.PAUSED_RATE_LIMIT:
            return given or self._rate_reason
        return given or CAPACITY_REASON if state is QueueState.PAUSED_CAPACITY else None

    def _tell_observer(self, state: QueueState, reason: str | None) -> None:
        if self._observer is None:
            return
        try:
            self._observer.on_queue_state_change(state, reason)
        except Exception:
            if not self._observer_failed:
                self._observer_failed = True
                logger.exception("queue state observer %r failed", self._observer)
