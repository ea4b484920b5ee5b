"""A circuit breaker, off unless configured: stop calling a server that keeps failing.

Closed until ``failures`` consecutive calls failed to get a usable answer; then open for
``cooldown`` seconds, when calls fail at once; then half open: one call goes through and decides.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class BreakerConfig:
    """How many consecutive failures open the circuit, and for how many seconds."""

    failures: int = 5
    cooldown: float = 30.0

    def __post_init__(self) -> None:
        if self.failures < 1:
            raise ValueError(f"failures: must be at least 1, got {self.failures}")
        if self.cooldown < 0:
            raise ValueError(f"cooldown: must not be negative, got {self.cooldown}")


class CircuitBreaker:
    """The state of one client's circuit. Used on the SDK's loop only."""

    def __init__(self, config: BreakerConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config, self._clock = config, clock
        self._failures = 0
        self._open_until: float | None = None
        self._probing = False

    @property
    def is_open(self) -> bool:
        return self._open_until is not None

    @property
    def remaining(self) -> float:
        """Seconds until calls are let through again; 0 when they are."""
        return 0.0 if self._open_until is None else max(0.0, self._open_until - self._clock())

    def refusal(self) -> float | None:
        """Seconds until the next attempt makes sense, or None when the call may go ahead."""
        if self._open_until is None:
            return None
        if (remaining := self.remaining) > 0:
            return remaining
        if self._probing:
            return self._config.cooldown
        self._probing = True
        return None

    def succeeded(self) -> bool:
        """Record a usable answer; True when this closed an open circuit."""
        was_open = self.is_open
        self._failures, self._open_until, self._probing = 0, None, False
        return was_open

    def failed(self) -> bool:
        """Record a failure; True when this opened the circuit."""
        was_open = self.is_open
        self._failures += 1
        self._probing = False
        if was_open or self._failures >= self._config.failures:
            self._open_until = self._clock() + self._config.cooldown
        return self.is_open and not was_open

    def abandoned(self) -> None:
        """The call was cancelled: it says nothing about the server."""
        self._probing = False
