"""The API's own description, for tools that read OpenAPI."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from tinkex.server.http.exchange import answer
from tinkex.server.http.routing import route
from tinkex.wire import routes as paths


async def description(request: Request) -> Response:
    """This document; needs no key, as it says nothing about anyone. Made for the first who asks,
    and written once for all."""
    state = request.app.state
    if not hasattr(state, "description"):
        state.description = asyncio.create_task(asyncio.to_thread(_written, request.app.routes))
    body: bytes = await asyncio.shield(state.description)
    return Response(body, media_type="application/json")


def _written(routes: Sequence[BaseRoute]) -> bytes:
    from tinkex.server.http import openapi

    return bytes(answer(openapi.document(routes)).body)


ROUTES: list[Route] = [
    route("GET", paths.DESCRIPTION, description, dict[str, Any], needs_key=False)
]
