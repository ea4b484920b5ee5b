"""Admission: whether a request may leave now, and what its end means for the next ones.

Rate limiter and circuit breaker as one gate, and the log of a server that does not answer. An
admitted request reports how it ended: ``answered``, ``failed`` or ``abandoned``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from tinkex.client.api.call import Call
from tinkex.client.api.comeback import Comeback
from tinkex.client.api.limiter import RateLimiter, shared_limiter
from tinkex.client.api.outage import Outage
from tinkex.client.api.retry import retry_delay_from_headers
from tinkex.client.errors import CircuitOpenError
from tinkex.client.events import bus as events
from tinkex.client.settings.breaker import CircuitBreaker
from tinkex.client.settings.config import Config


class Admission:
    """The gate in front of one client's requests. Used on the SDK's loop only."""

    def __init__(
        self, config: Config, identity: str, sign_of_life: Callable[[], Awaitable[object]]
    ) -> None:
        self._config = config
        self._bus = config.events
        self._limiter: RateLimiter = shared_limiter(config.base_url, identity)
        self._breaker = CircuitBreaker(config.breaker) if config.breaker else None
        timings = config.timings
        self._outage = Outage(config.base_url, timings.outage_log_after, timings.queue_log_interval)
        self._comeback = Comeback(
            self._outage, sign_of_life, timings.outage_probe_delay, timings.poll_delay_max
        )

    async def wait(self, call: Call) -> None:
        """Return when the limiter allows; ``CircuitOpenError`` at once while it is of no use."""
        if self._breaker is not None and (seconds := self._breaker.remaining) > 0:
            raise CircuitOpenError(call.describe({}), seconds)
        if self._limiter.remaining > 0:
            waited = await self._limiter.wait()
            self._bus.emit(events.LIMITER_WAIT, waited, path=call.path)

    def enter(self, call: Call, headers: Mapping[str, str]) -> None:
        """The request leaves now; of several that find the circuit half open only one does."""
        if self._breaker is not None and (seconds := self._breaker.refusal()) is not None:
            raise CircuitOpenError(call.describe(headers), seconds)

    def answered(self, call: Call, status: int, headers: Mapping[str, str]) -> None:
        """An answer arrived, whatever it says."""
        self._comeback.answered()
        if status >= 500:
            self._breaker_failed()
        elif self._breaker is not None and self._breaker.succeeded():
            self._bus.emit(events.BREAKER_CLOSE, base_url=self._config.base_url)
        largest = self._config.timings.retry_after_max
        if status == 429 and (delay := retry_delay_from_headers(headers, largest)) is not None:
            self._limiter.hold(delay)
            self._bus.emit(events.LIMITER_HOLD, path=call.path, delay=delay)

    def failed(self, started: float, reason: str) -> None:
        """No answer to a request that left at ``started``, by the monotonic clock."""
        self._breaker_failed()
        self._outage.failed(started, reason)

    async def pause(self, seconds: float) -> None:
        """Between two attempts: at most this long, less if the server comes back meanwhile."""
        await self._comeback.pause(seconds)

    async def aclose(self) -> None:
        await self._comeback.aclose()

    def abandoned(self) -> None:
        """The request was cancelled: it says nothing about the server."""
        if self._breaker is not None:
            self._breaker.abandoned()

    def _breaker_failed(self) -> None:
        if self._breaker is not None and self._breaker.failed():
            self._bus.emit(events.BREAKER_OPEN, base_url=self._config.base_url)
