"""Requests counted by route and status, and how long they and operations took.

Plain numbers of one server, which may share its process with other servers and with a program's own
metrics. `prometheus` makes them a page when one is asked for.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import get_args

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tinkex.server.connections.slow_clients import Reason

BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)


class Times:
    """How often something took how long."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        # Counts by the smallest bound that is not exceeded; the last is for what exceeds all.
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.total_s += seconds


class Requests:
    """The counts of a server. Only its event loop writes and reads them."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self._paths = {route.endpoint: route.path for route in routes if isinstance(route, Route)}
        self.answered: Counter[tuple[str, str]] = Counter()
        """By route and status."""
        self.seconds: defaultdict[str, Times] = defaultdict(Times)
        """By route."""
        self.cuts: Counter[Reason] = Counter(dict.fromkeys(get_args(Reason), 0))
        self.waited: defaultdict[str, Times] = defaultdict(Times)
        """By kind of operation, as `computed`."""
        self.computed: defaultdict[str, Times] = defaultdict(Times)

    def was_timed(self, kind: str, wait_s: float, engine_s: float) -> None:
        """A training operation ended."""
        self.waited[kind].add(wait_s)
        self.computed[kind].add(engine_s)

    def was_cut(self, reason: Reason) -> None:
        """A connection was cut."""
        self.cuts[reason] += 1

    def observe(self, scope: Scope, status: int, seconds: float) -> None:
        route = self._paths.get(scope.get("endpoint", self), "other")
        self.answered[route, str(status)] += 1
        self.seconds[route].add(seconds)


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
