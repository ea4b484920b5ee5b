"""Requests that an object store has not answered yet, and which of them are overdue.

A store that takes requests and never answers raises no error for a minute and more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_S = 5.0
"""For an answer without a body, or with a small one."""
_SLOWEST = 1 << 20
"""Bytes in a second; where a store is slower than this, people should hear of it."""


class Silence:
    """Of one store. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[object, tuple[float, float]] = {}

    @contextmanager
    def waiting(self, size: int | None) -> Iterator[None]:
        """For a request with so many bytes; None: nobody knows, so it is never overdue."""
        request, begun = object(), time.monotonic()
        if size is not None:
            with self._lock:
                self._waiting[request] = begun, begun + PATIENCE_S + size / _SLOWEST
        try:
            yield
        finally:
            with self._lock:
                self._waiting.pop(request, None)

    @property
    def seconds(self) -> float | None:
        """How long the oldest of those that are overdue has waited; None if none is."""
        now = time.monotonic()
        with self._lock:
            overdue = [now - begun for begun, due in self._waiting.values() if now > due]
        return max(overdue, default=None)
