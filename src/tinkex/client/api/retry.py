"""Whether to try again, and when: the rules shared by every layer, and the sampling handler.

The HTTP layer's loops live with the calls they repeat; here are the arithmetic they use and the
public ``RetryConfig``/``RetryHandler`` that decide what happens to a failed sample.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, TypeVar

from tinkex.client.errors import (
    APIConnectionError,
    APIStatusError,
    CircuitOpenError,
    RetryableException,
)
from tinkex.client.events import bus as events
from tinkex.wire import limits

if TYPE_CHECKING:
    from tinkex.client.api.telemetry import Telemetry

T = TypeVar("T")

PROGRESS_LOG_INTERVAL = 60.0

logger = logging.getLogger("tinkex")


def is_retryable_status_code(status_code: int) -> bool:
    """408, 409, 429 and every 5xx may go away by themselves."""
    return status_code in (408, 409, 429) or 500 <= status_code < 600


def is_retryable(error: BaseException) -> bool:
    """Whether the same call may succeed later: connection failures, retryable statuses, and what
    the server says of its own answer. A call that an open circuit refused is not worth repeating
    before the circuit closes."""
    if isinstance(error, CircuitOpenError | _Stuck):
        return False
    if isinstance(error, APIConnectionError):
        return True
    if not isinstance(error, APIStatusError):
        return False
    said = server_says(error)
    return is_retryable_status_code(error.status_code) if said is None else said


def server_says(error: APIStatusError) -> bool | None:
    """Whether the server wants the call again (``x-should-retry``); None when it does not say."""
    headers = getattr(error.response, "headers", None) or {}
    said = str(headers.get(limits.HEADER_SHOULD_RETRY, "")).strip().lower()
    return {"true": True, "false": False}.get(said)


def backoff(attempt: int, first: float, largest: float) -> float:
    """``first`` doubled for every earlier attempt, never more than ``largest``."""
    return min(first * 2.0 ** min(attempt, 32), largest)


def jittered(delay: float) -> float:
    """Up to a quarter less, so that clients that failed together do not return together."""
    return delay * (1.0 - 0.25 * random.random())


def retry_delay_from_headers(headers: Mapping[str, str], largest: float) -> float | None:
    """The wait the server asked for, when it is one: above zero and at most ``largest``."""
    delay = _milliseconds(headers.get(limits.HEADER_RETRY_AFTER_MS)) or _seconds(
        headers.get(limits.HEADER_RETRY_AFTER)
    )
    return delay if delay is not None and 0 < delay <= largest else None


def _milliseconds(text: str | None) -> float | None:
    try:
        return float(text) / 1000.0 if text else None
    except ValueError:
        return None


def _seconds(text: str | None) -> float | None:
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return parsedate_to_datetime(text).timestamp() - time.time()
    except (TypeError, ValueError):
        return None


@dataclass
class RetryConfig:
    """What a SamplingClient does with samples that fail for reasons that may pass.

    ``max_connections`` caps the samples in flight (the server's own limit wins); ``None`` is no
    cap. With ``enable_retry_logic=False`` the first failure reaches the caller.
    """

    max_connections: int | None = 1000  # samples in flight at once
    progress_timeout: float = 7200  # seconds without any sample that ends, before all fail
    retry_delay_base: float = 0.5
    """Seconds before the first repetition; doubled for each further one."""
    retry_delay_max: float = 10.0  # seconds, whatever they doubled to
    jitter_factor: float = 0.25  # the share of a delay that is left to chance
    enable_retry_logic: bool = True  # whether anything is repeated at all
    enable_stuck_detection: bool = True  # whether `progress_timeout` holds
    # What may pass.
    retryable_exceptions: tuple[type[Exception], ...] = (
        asyncio.TimeoutError,
        APIConnectionError,
        RetryableException,
    )

    def __post_init__(self) -> None:
        if self.max_connections is not None and self.max_connections <= 0:
            raise ValueError(f"max_connections must be greater than 0, got {self.max_connections}")

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))


class RetryHandler:
    """Runs calls under a ``RetryConfig``; one handler watches over all samples of a client."""

    def __init__(
        self,
        config: RetryConfig | None = None,
        name: str = "default",
        telemetry: Telemetry | None = None,
    ) -> None:
        self.config = config or RetryConfig()
        self.name = name
        self.bus = events.default_bus
        self.pause: Callable[[float], Awaitable[None]] = asyncio.sleep
        self._telemetry = telemetry
        self._slots = (
            None
            if self.config.max_connections is None
            else asyncio.Semaphore(self.config.max_connections)
        )
        self._in_flight = 0
        self._waiting = 0
        self._last_progress = time.monotonic()
        self._last_log = time.monotonic()
        self._watched: set[asyncio.Task[Any]] = set()
        self._stuck: set[asyncio.Task[Any]] = set()
        self._watchdog: asyncio.TimerHandle | None = None

    async def execute(self, func: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        """Call ``func`` until it succeeds, fails for good, or nothing succeeds for too long."""
        if self._slots is None:
            return await self._run(func, *args, **kwargs)
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1
        try:
            return await self._run(func, *args, **kwargs)
        finally:
            self._slots.release()

    async def _run(self, func: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        if self._in_flight == 0:
            self._last_progress = time.monotonic()  # idle time is not lack of progress
        self._in_flight += 1
        try:
            return await self._repeat(func, *args, **kwargs)
        finally:
            self._in_flight -= 1

    async def _repeat(self, func: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        attempt = 0
        while True:
            try:
                result = await self._attempt(func, *args, **kwargs)
            except Exception as error:
                if not self._should_retry(error):
                    raise
                delay = self._calculate_retry_delay(attempt)
                self._report_retry(error, attempt, delay)
                await self.pause(delay)
                attempt += 1
            else:
                self._last_progress = time.monotonic()
                return result

    async def _attempt(self, func: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        task = asyncio.current_task()
        if not self.config.enable_stuck_detection or task is None:
            return await func(*args, **kwargs)
        self._watched.add(task)
        self._watch()
        try:
            return await func(*args, **kwargs)
        except asyncio.CancelledError:
            if task not in self._stuck:
                raise
            task.uncancel()
            raise _Stuck(
                None,
                f"No progress made in {self.config.progress_timeout:.0f} s: none of the "
                f"{self._in_flight} requests in flight finished. The requests are stuck.",
            ) from None
        finally:
            self._watched.discard(task)
            self._stuck.discard(task)
            self._stop_watching_if_idle()

    def _watch(self) -> None:
        if self._watchdog is None:
            quiet = time.monotonic() - self._last_progress
            patience = max(0.0, self.config.progress_timeout - quiet)
            self._watchdog = asyncio.get_running_loop().call_later(patience, self._check)

    def _check(self) -> None:
        self._watchdog = None
        if time.monotonic() - self._last_progress >= self.config.progress_timeout:
            self._stuck |= self._watched
            for task in self._watched:
                task.cancel()
        elif self._watched:
            self._watch()

    def _stop_watching_if_idle(self) -> None:
        if not self._watched and self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None

    def _should_retry(self, error: Exception) -> bool:
        if not self.config.enable_retry_logic or isinstance(error, CircuitOpenError | _Stuck):
            return False
        if isinstance(error, APIStatusError) and server_says(error) is False:
            return False
        return isinstance(error, self.config.retryable_exceptions) or is_retryable(error)

    def _calculate_retry_delay(self, attempt: int) -> float:
        config = self.config
        delay = backoff(attempt, config.retry_delay_base, config.retry_delay_max)
        delay += delay * config.jitter_factor * random.uniform(-1.0, 1.0)
        return max(0.0, min(delay, config.retry_delay_max))

    def _report_retry(self, error: Exception, attempt: int, delay: float) -> None:
        self.bus.emit(
            events.RETRY_SCHEDULED,
            layer="sampling",
            error=type(error).__name__,
            attempt=attempt,
            delay=delay,
        )
        now = time.monotonic()
        if now - self._last_log >= PROGRESS_LOG_INTERVAL:
            self._last_log = now
            logger.warning(
                "[%s] retrying after %s; %d in flight, %d waiting",
                self.name,
                type(error).__name__,
                self._in_flight,
                self._waiting,
            )

    def get_telemetry(self) -> Telemetry | None:
        return self._telemetry


class _Stuck(APIConnectionError):
    """Raised by stuck detection itself, so that it is never retried."""
