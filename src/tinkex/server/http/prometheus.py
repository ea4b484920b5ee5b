"""The Prometheus page: requests are counted here, the server's state comes from `state_metrics`.

Labels come from routes and served models only; no tenant, key or user-chosen name appears. Loaded
when the page is first requested: `prometheus_client`, with the web servers it brings, is 3 % of the
time of a server's import.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from tinkex.server.http.request_counts import BOUNDS_S, Requests, Times

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_BOUNDS = (*map(str, BOUNDS_S), "+Inf")


class Page(Collector):
    """What is scraped: the requests, then the server's state."""

    def __init__(self, requests: Requests, state: Iterable[Metric]) -> None:
        self._requests = requests
        self._state = state

    def collect(self) -> Iterator[Metric]:
        yield from _families(self._requests)
        yield from self._state

    def text(self) -> bytes:
        return generate_latest(self)


def _families(requests: Requests) -> list[Metric]:
    return [
        _counter(
            "tinkex_requests", "Requests answered.", ("route", "status"), requests.answered.items()
        ),
        _histogram(
            "tinkex_request_seconds",
            "Time to answer a request, held polls included.",
            "route",
            requests.seconds,
        ),
        _counter(
            "tinkex_connections_cut",
            "Connections cut because their client dawdled.",
            ("reason",),
            [((reason,), count) for reason, count in requests.cuts.items()],
        ),
        _histogram(
            "tinkex_operation_wait_seconds",
            "Time a training operation waited for its turn.",
            "kind",
            requests.waited,
        ),
        _histogram(
            "tinkex_operation_engine_seconds",
            "Time a training operation was with its engine.",
            "kind",
            requests.computed,
        ),
    ]


def _counter(
    name: str, text: str, labels: Sequence[str], counts: Iterable[tuple[Sequence[str], int]]
) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, count in counts:
        family.add_metric(values, count)
    return family


def _histogram(name: str, text: str, label: str, times: Mapping[str, Times]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=(label,))
    for value, each in times.items():
        buckets = list(zip(_BOUNDS, accumulate(each.counts), strict=True))
        family.add_metric((value,), buckets, each.total_s)
    return family
