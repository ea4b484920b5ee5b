"""The HTTP face: one module per noun. A route parses, calls one service function, encodes."""

from __future__ import annotations

from starlette.routing import Route

from tinkex.server.routes.http import Handler, guarded
from tinkex.wire.routes import API_PREFIX


def route(method: str, path: str, handler: Handler) -> Route:
    """A guarded route; `path` comes from `tinkex.wire.routes` or starts below the API's prefix."""
    full = path if path.startswith(API_PREFIX) else f"{API_PREFIX}{path}"
    return Route(full, guarded(handler), methods=[method])
