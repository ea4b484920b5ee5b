"""Telemetry: accepted, counted, not kept. Event data may hold the caller's key in clear."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.http.bodies import received
from tinkex.server.http.exchange import answer, tenant_of
from tinkex.server.http.routing import route
from tinkex.types.telemetry import TelemetryResponse
from tinkex.wire import routes as paths


async def accept(request: Request) -> Response:
    tenant_of(request)
    async with received(request):
        return answer({"status": "accepted"})


ROUTES: list[Route] = [
    route("POST", paths.TELEMETRY, accept, TelemetryResponse, reads="application/json")
]
