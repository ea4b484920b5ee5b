"""What a server shows of itself to Prometheus: its requests here, its state in `state_metrics`.

Labels come from routes and served models only; no tenant, key or name that a user chose appears.
Every server has a registry of its own: several may live in one process, beside a program's metrics.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, generate_latest
from prometheus_client.registry import Collector
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tinkex.server.connections.slow_clients import Reason

_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)


class Requests:
    """Counts requests by route and status, and how long they took."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self.registry = CollectorRegistry()
        self._paths = {route.endpoint: route.path for route in routes if isinstance(route, Route)}
        self._count = self._counter(
            "tinkex_requests_total", "Requests answered.", ("route", "status")
        )
        self._seconds = self._histogram(
            "tinkex_request_seconds", "Time to answer a request, held polls included.", "route"
        )
        self._cuts = self._counter(
            "tinkex_connections_cut_total",
            "Connections cut because their client dawdled.",
            ("reason",),
        )
        for reason in get_args(Reason):
            self._cuts.labels(reason)
        self._waited = self._histogram(
            "tinkex_operation_wait_seconds",
            "Time a training operation waited for its turn.",
            "kind",
        )
        self._computed = self._histogram(
            "tinkex_operation_engine_seconds",
            "Time a training operation was with its engine.",
            "kind",
        )

    def was_timed(self, kind: str, wait_s: float, engine_s: float) -> None:
        """A training operation ended."""
        self._waited.labels(kind).observe(wait_s)
        self._computed.labels(kind).observe(engine_s)

    def was_cut(self, reason: Reason) -> None:
        """A connection was cut."""
        self._cuts.labels(reason).inc()

    def observe(self, scope: Scope, status: int, seconds: float) -> None:
        route = self._paths.get(scope.get("endpoint", self), "other")
        self._count.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, label: str) -> Histogram:
        return Histogram(name, text, (label,), registry=self.registry, buckets=_SECONDS)


class Page(Collector):
    """What is scraped: the requests, then the server's state."""

    def __init__(self, requests: Requests, state: Iterable[Metric]) -> None:
        self._requests = requests
        self._state = state

    def collect(self) -> Iterator[Metric]:
        for family in self._requests.registry.collect():
            # When each label was first seen is nothing that anybody has asked of this page.
            family.samples = [each for each in family.samples if not _is_a_birth(each.name)]
            yield family
        yield from self._state

    def text(self) -> bytes:
        return generate_latest(self)


def _is_a_birth(name: str) -> bool:
    return name.endswith("_created")


class Measured:
    """ASGI middleware that tells `requests` about every answer."""

    def __init__(self, app: ASGIApp, requests: Requests) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status = time.perf_counter(), 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            self._requests.observe(scope, status, time.perf_counter() - begun)
