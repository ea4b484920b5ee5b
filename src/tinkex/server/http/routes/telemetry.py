"""Telemetry: accepted, counted, not kept. Event data may hold the caller's key in clear."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.http.exchange import answer, core_of, read_body, tenant_of
from tinkex.server.http.routing import route
from tinkex.types.telemetry import TelemetryResponse
from tinkex.wire import routes as paths


async def accept(request: Request) -> Response:
    tenant_of(request)
    await read_body(request, core_of(request).settings.limits.json_body_bytes)
    return answer({"status": "accepted"})


ROUTES: list[Route] = [
    route("POST", paths.TELEMETRY, accept, TelemetryResponse, reads="application/json")
]
