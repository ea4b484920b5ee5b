"""The local event bus: what the SDK is doing, under stable dotted names.

A handler is any callable taking an ``Event``. Handlers run on the thread that emits, so they must
be quick; one that raises is reported once through ``logging`` and never disturbs the SDK. Event
data never holds headers, bodies or credentials.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tinkex.client.events.metrics import Metrics
from tinkex.client.redaction import redact

if TYPE_CHECKING:
    from collections.abc import Iterator

HTTP_START = "tinkex.http.request.start"
HTTP_STOP = "tinkex.http.request.stop"
HTTP_EXCEPTION = "tinkex.http.request.exception"
RETRY_SCHEDULED = "tinkex.retry.scheduled"
RETRY_EXHAUSTED = "tinkex.retry.exhausted"
LIMITER_HOLD = "tinkex.limiter.hold"
LIMITER_WAIT = "tinkex.limiter.wait"
BREAKER_OPEN = "tinkex.breaker.open"
BREAKER_CLOSE = "tinkex.breaker.close"
QUEUE_STATE_CHANGE = "tinkex.queue.state_change"
FUTURE_CREATED = "tinkex.future.created"
FUTURE_COMPLETED = "tinkex.future.completed"
FUTURE_FAILED = "tinkex.future.failed"
FUTURE_EXPIRED = "tinkex.future.expired"
FUTURE_CANCELLED = "tinkex.future.cancelled"
SAMPLING_BACKPRESSURE = "tinkex.sampling.backpressure"
SESSION_START = "tinkex.session.start"
SESSION_STOP = "tinkex.session.stop"
SESSION_HEARTBEAT = "tinkex.session.heartbeat"
SESSION_HEARTBEAT_MISSED = "tinkex.session.heartbeat_missed"
TELEMETRY_SENT = "tinkex.telemetry.sent"
TELEMETRY_DROPPED = "tinkex.telemetry.dropped"
TRAINING_SUBMITTED = "tinkex.training.submitted"
TRAINING_MEASURED = "tinkex.training.measured"
RECOVERY_STARTED = "tinkex.recovery.started"
RECOVERY_COMPLETED = "tinkex.recovery.completed"

NAMES: frozenset[str] = frozenset(
    value for name, value in list(globals().items()) if name.isupper() and isinstance(value, str)
)

__all__ = [
    "BREAKER_CLOSE",
    "BREAKER_OPEN",
    "FUTURE_CANCELLED",
    "FUTURE_COMPLETED",
    "FUTURE_CREATED",
    "FUTURE_EXPIRED",
    "FUTURE_FAILED",
    "HTTP_EXCEPTION",
    "HTTP_START",
    "HTTP_STOP",
    "LIMITER_HOLD",
    "LIMITER_WAIT",
    "NAMES",
    "QUEUE_STATE_CHANGE",
    "RECOVERY_COMPLETED",
    "RECOVERY_STARTED",
    "RETRY_EXHAUSTED",
    "RETRY_SCHEDULED",
    "SAMPLING_BACKPRESSURE",
    "SESSION_HEARTBEAT",
    "SESSION_HEARTBEAT_MISSED",
    "SESSION_START",
    "SESSION_STOP",
    "TELEMETRY_DROPPED",
    "TELEMETRY_SENT",
    "TRAINING_MEASURED",
    "TRAINING_SUBMITTED",
    "Event",
    "EventBus",
    "Handler",
    "attach_logger",
    "default_bus",
]

logger = logging.getLogger("tinkex.events")


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. ``duration`` is in seconds where the event closes something."""

    name: str
    data: Mapping[str, Any] = field(default_factory=dict)
    duration: float | None = None
    time: float = field(default_factory=time.time)


Handler = Callable[[Event], None]


class EventBus:
    """Hands events to subscribers and keeps the metrics of what passed through it."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self._handlers: tuple[tuple[str, Handler], ...] = ()
        self._lock = threading.Lock()
        self._broken: set[int] = set()

    def subscribe(self, handler: Handler, prefix: str = "") -> Callable[[], None]:
        """Call ``handler`` for every event whose name starts with ``prefix``.

        Returns a function that ends the subscription.
        """
        entry = (prefix, handler)
        with self._lock:
            self._handlers = (*self._handlers, entry)

        def unsubscribe() -> None:
            with self._lock:
                self._handlers = tuple(item for item in self._handlers if item is not entry)

        return unsubscribe

    @contextmanager
    def capture(self, prefix: str = "") -> Iterator[list[Event]]:
        """Collect the events of a block into the list this yields."""
        captured: list[Event] = []
        unsubscribe = self.subscribe(captured.append, prefix)
        try:
            yield captured
        finally:
            unsubscribe()

    def emit(self, name: str, duration: float | None = None, /, **data: Any) -> None:
        """Tell everybody who subscribed, and count it."""
        self.metrics.record(name, duration)
        if not self._handlers:
            return
        safe = redact(data)
        assert isinstance(safe, dict)
        event = Event(name, safe, duration)
        for prefix, handler in self._handlers:
            if name.startswith(prefix):
                self._deliver(handler, event)

    def _deliver(self, handler: Handler, event: Event) -> None:
        try:
            handler(event)
        except Exception:
            if id(handler) not in self._broken:
                self._broken.add(id(handler))
                logger.exception("event handler %r failed on %s", handler, event.name)


default_bus = EventBus()
"""The bus of every configuration that does not bring its own."""


def attach_logger(
    target: logging.Logger | str = "tinkex",
    *,
    level: int = logging.INFO,
    prefix: str = "",
    bus: EventBus | None = None,
) -> Callable[[], None]:
    """Write events as log lines. Returns a function that detaches it again.

    Exceptions and missed heartbeats are logged as warnings whatever ``level`` says.
    """
    log = logging.getLogger(target) if isinstance(target, str) else target

    def write(event: Event) -> None:
        chosen = logging.WARNING if event.name in _WARNINGS else level
        if not log.isEnabledFor(chosen):
            return
        details = " ".join(f"{key}={value}" for key, value in event.data.items())
        took = "" if event.duration is None else f" duration_ms={event.duration * 1000:.1f}"
        log.log(chosen, "%s%s %s", event.name, took, details)

    return (bus or default_bus).subscribe(write, prefix)


_WARNINGS = frozenset({HTTP_EXCEPTION, SESSION_HEARTBEAT_MISSED, BREAKER_OPEN, FUTURE_FAILED})
