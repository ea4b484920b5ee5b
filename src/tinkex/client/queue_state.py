"""Saying why a future waits: to an observer, as an event, and as a log line once in a while."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from enum import Enum

from tinkex.client.events import QUEUE_STATE_CHANGE, EventBus

logger = logging.getLogger("tinkex")

CAPACITY_REASON = "the server is running short on capacity"
TRAINING_RATE_REASON = "concurrent training clients rate limit hit"
SAMPLING_RATE_REASON = "concurrent sampler weights limit hit"


class QueueState(Enum):
    """What the server says about a request that is not done yet."""

    ACTIVE = "active"
    PAUSED_RATE_LIMIT = "paused_rate_limit"
    PAUSED_CAPACITY = "paused_capacity"
    UNKNOWN = "unknown"

    @classmethod
    def parse(cls, text: object) -> QueueState:
        try:
            return cls(text)
        except ValueError:
            return cls.UNKNOWN


class QueueStateObserver(ABC):
    """Told about every pending answer of the futures it watches."""

    @abstractmethod
    def on_queue_state_change(
        self, queue_state: QueueState, queue_state_reason: str | None
    ) -> None: ...


class QueueReporter(QueueStateObserver):
    """Emits an event when the state changes and logs pauses at most once per interval."""

    def __init__(self, subject: str, rate_reason: str, bus: EventBus, log_interval: float) -> None:
        self._subject = subject
        self._rate_reason = rate_reason
        self._bus = bus
        self._log_interval = log_interval
        self._state: QueueState | None = None
        self._logged_at: float | None = None

    def on_queue_state_change(
        self, queue_state: QueueState, queue_state_reason: str | None
    ) -> None:
        reason = queue_state_reason or self._default_reason(queue_state)
        if queue_state is not self._state:
            self._state = queue_state
            self._bus.emit(
                QUEUE_STATE_CHANGE, subject=self._subject, state=queue_state.value, reason=reason
            )
        if queue_state is QueueState.ACTIVE or queue_state is QueueState.UNKNOWN:
            return
        now = time.monotonic()
        if self._logged_at is None or now - self._logged_at >= self._log_interval:
            self._logged_at = now
            logger.warning("%s is paused. Reason: %s.", self._subject, reason)

    def _default_reason(self, state: QueueState) -> str:
        return self._rate_reason if state is QueueState.PAUSED_RATE_LIMIT else CAPACITY_REASON
