"""Promises of the Prometheus text."""

from __future__ import annotations

import pytest

from tinkex.server.http.metrics import Registry


def test_the_text_form_is_what_prometheus_reads() -> None:
    registry = Registry()
    requests = registry.counter("tinkex_requests_total", "Requests answered.")
    requests.add(route="asample", status="200")
    requests.add(2, status="200", route="asample")
    requests.add(route='a"b\n\\', status="404")
    registry.gauge("tinkex_queue_depth", "Operations waiting.", lambda: 7)
    registry.gauge("tinkex_runs", "Runs.", lambda: {(("state", "live"),): 2.5})
    assert registry.render().splitlines() == [
        "# HELP tinkex_requests_total Requests answered.",
        "# TYPE tinkex_requests_total counter",
        'tinkex_requests_total{route="a\\"b\\n\\\\",status="404"} 1',
        'tinkex_requests_total{route="asample",status="200"} 3',
        "# HELP tinkex_queue_depth Operations waiting.",
        "# TYPE tinkex_queue_depth gauge",
        "tinkex_queue_depth 7",
        "# HELP tinkex_runs Runs.",
        "# TYPE tinkex_runs gauge",
        'tinkex_runs{state="live"} 2.5',
    ]


def test_a_histogram_counts_every_observation_up_to_each_bound() -> None:
    registry = Registry()
    seconds = registry.histogram("t", "Time.", bounds=(0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 3.0):
        seconds.observe(value, route="x")
    assert registry.render().splitlines()[2:] == [
        't_bucket{route="x",le="0.1"} 2',
        't_bucket{route="x",le="1"} 3',
        't_bucket{route="x",le="+Inf"} 4',
        't_sum{route="x"} 3.65',
        't_count{route="x"} 4',
    ]


def test_one_name_is_declared_once() -> None:
    registry = Registry()
    registry.counter("a", "A.")
    with pytest.raises(ValueError, match="declared twice"):
        registry.histogram("a", "A.")
