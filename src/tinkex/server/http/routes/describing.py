"""The API's own description, for tools that read OpenAPI."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.http.exchange import answer
from tinkex.server.http.routing import route
from tinkex.wire import routes as paths


async def description(request: Request) -> Response:
    """This document; needs no key, as it says nothing about anyone."""
    from tinkex.server.http import openapi

    state = request.app.state
    if not hasattr(state, "openapi"):
        state.openapi = await asyncio.to_thread(openapi.document, request.app.routes)
    return answer(state.openapi)


ROUTES: list[Route] = [
    route("GET", paths.DESCRIPTION, description, dict[str, Any], needs_key=False)
]
