"""Counters and percentiles of what an event bus saw."""

from tinkex.client.events.metrics import WINDOW, Metrics


def test_percentiles_are_values_that_occurred() -> None:
    metrics = Metrics()
    for value in range(1, 101):
        metrics.record("a", value / 100)
    metrics.record("b")
    snapshot = metrics.snapshot()
    latency = snapshot.latencies["a"]
    assert (latency.p50, latency.p90, latency.p99) == (0.5, 0.9, 0.99)
    assert (latency.minimum, latency.maximum, latency.count) == (0.01, 1.0, 100)
    assert snapshot.counters == {"a": 100, "b": 1}
    assert snapshot.as_dict()["latencies"]["a"]["p50"] == 0.5


def test_memory_is_bounded_and_counts_are_not() -> None:
    metrics = Metrics()
    for _ in range(WINDOW + 10):
        metrics.record("a", 1.0)
    assert metrics.snapshot().counters["a"] == WINDOW + 10
    assert len(metrics._durations["a"]) == WINDOW
    metrics.reset()
    assert metrics.snapshot().counters == {}
