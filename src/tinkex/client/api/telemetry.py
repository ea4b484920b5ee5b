"""Telemetry to the server: batched, bounded, and with secrets removed.

Events never hold headers or bodies, and every text is scrubbed before it is queued. A server that
does not accept telemetry costs nothing but the events: sending never delays a caller.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import platform
import threading
import time
import traceback
import uuid
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from tinkex.client.api import call_policies
from tinkex.client.errors import APIError, is_user_error
from tinkex.client.events import bus as events
from tinkex.client.redaction import redact, redact_text
from tinkex.wire import limits, routes

if TYPE_CHECKING:
    from tinkex.client.api.api import Api
    from tinkex.client.concurrency.loop import Lease

Severity = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]

logger = logging.getLogger("tinkex")


class Telemetry:
    """The telemetry of one client. Logging is thread-safe and returns at once.

    Every ``log`` method answers whether the event was queued; a full queue drops it.
    """

    def __init__(self, api: Api, lease: Lease, session_id: str | None) -> None:
        self._api = api
        self._lease = lease
        self._session_id = session_id or f"sessionless-{uuid.uuid4()}"
        self._queue: deque[dict[str, Any]] = deque()
        self._lock = threading.Lock()
        self._index = 0
        self._started = time.monotonic()
        self._stopped = False
        self._flusher: asyncio.Task[None] | None = None
        self._urgent = asyncio.Event()
        if session_id is not None:
            self._put({"event": "SESSION_START"}, "INFO")

    # ---- public

    def log(
        self,
        event_name: str,
        event_data: dict[str, object] | None = None,
        severity: Severity = "INFO",
    ) -> bool:
        return self._put(
            {
                "event": "GENERIC_EVENT",
                "event_name": event_name,
                "event_data": redact(event_data or {}),
            },
            severity,
        )

    def log_exception(self, exception: BaseException, severity: Severity = "ERROR") -> bool:
        queued = self._put(_exception_event(exception), severity)
        self._hurry()
        return queued

    def log_fatal_exception(self, exception: BaseException, severity: Severity = "ERROR") -> bool:
        queued = self._put(_exception_event(exception), severity)
        lived = timedelta(seconds=time.monotonic() - self._started)
        queued = self._put({"event": "SESSION_END", "duration": str(lived)}, "INFO") and queued
        self._hurry()
        return queued

    # The sync forms exist for code written for the official SDK; nothing here blocks.
    log_exception_sync = log_exception
    log_fatal_exception_sync = log_fatal_exception

    @contextmanager
    def capture_exceptions(
        self, fatal: bool = False, severity: Severity = "ERROR"
    ) -> Iterator[None]:
        """Report an exception leaving the block, and let it go on."""
        try:
            yield
        except Exception as error:
            (self.log_fatal_exception if fatal else self.log_exception)(error, severity)
            raise

    @asynccontextmanager
    async def acapture_exceptions(
        self, fatal: bool = False, severity: Severity = "ERROR"
    ) -> AsyncIterator[None]:
        with self.capture_exceptions(fatal, severity):
            yield

    def stop(self) -> None:
        """Accept no more events; what is queued may still be sent by ``close``."""
        self._stopped = True

    async def close(self) -> None:
        """Send what is queued, once, within the drain limit; then stop."""
        self._ensure_flusher()
        self.stop()
        self._urgent.set()
        if self._flusher is None:
            return
        # A batch on its way must not be sent twice: it is waited for before anything is cancelled.
        await asyncio.wait([self._flusher], timeout=self._api.config.timings.telemetry_drain)
        self._flusher.cancel()
        await asyncio.wait([self._flusher])

    # ---- queueing

    def _put(self, event: dict[str, Any], severity: Severity) -> bool:
        with self._lock:
            if self._stopped or len(self._queue) >= limits.TELEMETRY_QUEUE:
                self._api.bus.emit(events.TELEMETRY_DROPPED)
                return False
            event |= {
                "event_id": str(uuid.uuid4()),
                "event_session_index": self._index,
                "severity": severity,
                "timestamp": datetime.now(UTC).isoformat(),
            }
            self._index += 1
            self._queue.append(event)
        self._on_loop(self._ensure_flusher)
        return True

    def _hurry(self) -> None:
        self._on_loop(self._urgent.set)

    def _on_loop(self, callback: Any) -> None:
        try:
            self._lease.loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the loop is gone: so is the client
            self._stopped = True

    # ---- sending

    def _ensure_flusher(self) -> None:
        if self._queue and not self._stopped and (self._flusher is None or self._flusher.done()):
            self._flusher = asyncio.create_task(self._flush(), name="tinkex-telemetry")

    async def _flush(self) -> None:
        """Send until the queue is empty; then end, so that an idle client has no task."""
        delay = self._api.config.timings.telemetry_interval
        while self._queue:
            await self._wait(delay)
            sent = await self._send_batch()
            if self._stopped and not sent:
                return
            delay = self._api.config.timings.telemetry_interval if not sent else 0.0

    async def _wait(self, delay: float) -> None:
        try:
            await asyncio.wait_for(self._urgent.wait(), delay)
        except TimeoutError:
            return
        self._urgent.clear()

    async def _send_batch(self) -> bool:
        with self._lock:
            batch = [self._queue[i] for i in range(min(limits.TELEMETRY_BATCH, len(self._queue)))]
        body = {
            "events": batch,
            "platform": platform.system(),
            "sdk_version": limits.PROTOCOL_VERSION,
            "session_id": self._session_id,
            "process_uuid": process_uuid(os.getpid()),
        }
        try:
            await self._api.send(
                "POST", routes.TELEMETRY, call_policies.TELEMETRY, body=json.dumps(body).encode()
            )
        except APIError as error:
            logger.debug("telemetry was not accepted: %s", type(error).__name__)
            return False
        with self._lock:
            for _ in batch:
                self._queue.popleft()
        self._api.bus.emit(events.TELEMETRY_SENT, count=len(batch))
        return True


@functools.cache
def process_uuid(pid: int) -> str:
    """A random name for this process; a forked child gets its own."""
    return str(uuid.uuid4())


def _exception_event(exception: BaseException) -> dict[str, Any]:
    text = redact_text(str(exception))
    kind = type(exception).__name__
    if is_user_error(exception):
        return {
            "event": "GENERIC_EVENT",
            "event_name": "user_error",
            "event_data": {"error_type": kind, "message": text},
        }
    frames = traceback.format_exception(type(exception), exception, exception.__traceback__)
    return {
        "event": "UNHANDLED_EXCEPTION",
        "error_type": kind,
        "error_message": text,
        "traceback": redact_text("".join(frames)),
    }
