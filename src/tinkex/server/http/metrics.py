"""Counters, gauges and histograms, and their Prometheus text form.

Knows nothing of HTTP, tenants or the engine. Labels are chosen by the code that observes, never
taken from a client, so that neither a secret nor an endless set of values can get in.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias, TypeVar

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

Labels: TypeAlias = tuple[tuple[str, str], ...]
Read: TypeAlias = Callable[[], float | Mapping[Labels, float]]


class Counter:
    """A number that only grows."""

    kind = "counter"

    def __init__(self) -> None:
        self._values: dict[Labels, float] = {}
        self._lock = threading.Lock()

    def add(self, amount: float = 1.0, **labels: str) -> None:
        key = tuple(sorted(labels.items()))
        with self._lock:
            self._values[key] = self._values.get(key, 0.0) + amount

    def samples(self, name: str) -> Iterator[str]:
        with self._lock:
            values = sorted(self._values.items())
        for labels, value in values or [((), 0.0)]:
            yield _sample(name, labels, value)


class Reading:
    """Numbers read when they are asked for: `read` returns one, or one per label set."""

    def __init__(self, read: Read, kind: str) -> None:
        self._read = read
        self.kind = kind

    def samples(self, name: str) -> Iterator[str]:
        value = self._read()
        values = value if isinstance(value, Mapping) else {(): value}
        for labels, number in sorted(values.items()):
            yield _sample(name, labels, number)


class Histogram:
    """How observations spread over fixed bounds."""

    kind = "histogram"

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._bounds = (*bounds, math.inf)
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}
        self._lock = threading.Lock()

    def observe(self, value: float, **labels: str) -> None:
        key = tuple(sorted(labels.items()))
        with self._lock:
            counts = self._counts.setdefault(key, [0] * len(self._bounds))
            counts[bisect_left(self._bounds, value)] += 1
            self._sums[key] = self._sums.get(key, 0.0) + value

    def samples(self, name: str) -> Iterator[str]:
        with self._lock:
            state = sorted(
                (key, list(counts), self._sums[key]) for key, counts in self._counts.items()
            )
        for labels, counts, total in state:
            running = 0
            for bound, count in zip(self._bounds, counts, strict=True):
                running += count
                yield _sample(f"{name}_bucket", (*labels, ("le", _number(bound))), running)
            yield _sample(f"{name}_sum", labels, total)
            yield _sample(f"{name}_count", labels, running)


_Metric = TypeVar("_Metric", Counter, Reading, Histogram)


class Registry:
    """The metrics of one server, in the order they were declared."""

    def __init__(self) -> None:
        self._metrics: dict[str, tuple[str, Counter | Reading | Histogram]] = {}

    def counter(self, name: str, help_text: str) -> Counter:
        return self._add(name, help_text, Counter())

    def gauge(self, name: str, help_text: str, read: Read) -> Reading:
        return self._add(name, help_text, Reading(read, "gauge"))

    def total(self, name: str, help_text: str, read: Read) -> Reading:
        """A number kept elsewhere that only grows."""
        return self._add(name, help_text, Reading(read, "counter"))

    def histogram(self, name: str, help_text: str, bounds: Sequence[float] = SECONDS) -> Histogram:
        return self._add(name, help_text, Histogram(bounds))

    def render(self) -> str:
        """The text a Prometheus server scrapes."""
        lines: list[str] = []
        for name, (help_text, metric) in self._metrics.items():
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {metric.kind}"]
            lines += metric.samples(name)
        return "\n".join(lines) + "\n"

    def _add(self, name: str, help_text: str, metric: _Metric) -> _Metric:
        if name in self._metrics:
            raise ValueError(f"the metric {name} is declared twice")
        self._metrics[name] = (help_text, metric)
        return metric


def _sample(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{key}="{_escape(text)}"' for key, text in labels)
    return f"{name}{{{inside}}} {_number(value)}" if inside else f"{name} {_number(value)}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if float(value).is_integer() else repr(float(value))
