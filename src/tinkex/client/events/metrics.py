"""Counters and latency percentiles of one event bus.

Keeps the most recent durations of each event name in a fixed-size window, so memory is bounded
and a snapshot describes recent behaviour rather than the whole life of the process.
"""

import threading
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any

WINDOW = 2048
_PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Latency:
    """Durations in seconds over the recent window."""

    count: int  # over the whole life
    mean: float  # of the window, as all below
    minimum: float  # the quickest
    maximum: float  # the slowest
    p50: float  # half took no longer
    p90: float  # nine in ten took no longer
    p99: float  # all but one in a hundred took no longer


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What has happened so far: events by name, and latencies of those that have a duration."""

    counters: dict[str, int]
    latencies: dict[str, Latency]

    def as_dict(self) -> dict[str, Any]:
        """The same as plain dictionaries, ready for JSON."""
        names = ("count", "mean", "minimum", "maximum", "p50", "p90", "p99")
        return {
            "counters": dict(self.counters),
            "latencies": {
                key: {name: getattr(value, name) for name in names}
                for key, value in self.latencies.items()
            },
        }


class Metrics:
    """Thread-safe; recording costs a lock and a deque append."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: defaultdict[str, int] = defaultdict(int)
        self._durations: dict[str, deque[float]] = {}

    def record(self, name: str, duration: float | None = None) -> None:
        """Count an event, and keep its duration in seconds where it has one."""
        with self._lock:
            self._counters[name] += 1
            if duration is not None:
                self._durations.setdefault(name, deque(maxlen=WINDOW)).append(duration)

    def snapshot(self) -> Snapshot:
        """What has happened so far."""
        with self._lock:
            counters = dict(self._counters)
            durations = {name: sorted(values) for name, values in self._durations.items()}
        return Snapshot(
            counters, {name: _latency(counters[name], values) for name, values in durations.items()}
        )

    def reset(self) -> None:
        """Begin anew."""
        with self._lock:
            self._counters.clear()
            self._durations.clear()


def _latency(count: int, ordered: list[float]) -> Latency:
    p50, p90, p99 = (_percentile(ordered, percent) for percent in _PERCENTILES)
    return Latency(count, sum(ordered) / len(ordered), ordered[0], ordered[-1], p50, p90, p99)


def _percentile(ordered: list[float], percent: int) -> float:
    # Nearest rank: always a value that really occurred.
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[rank - 1]
