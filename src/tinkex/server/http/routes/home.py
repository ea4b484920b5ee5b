"""The home itself, for the user who owns its files and nobody else."""

from __future__ import annotations

from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.core import Core
from tinkex.server.http.answers import Collected
from tinkex.server.http.exchange import answer, core_of, is_owner, tenant_of
from tinkex.server.http.routing import route
from tinkex.server.refusals import NotFound
from tinkex.wire import routes as paths


async def collectable(request: Request) -> Response:
    """What could be let go of now."""
    return answer(asdict(await _owned(request).unnamed.collectable()))


async def collect(request: Request) -> Response:
    """Let go of what the home need not keep."""
    return answer(asdict(await _owned(request).collect()))


def _owned(request: Request) -> Core:
    tenant_of(request)
    if not is_owner(request):
        raise NotFound("a home is tended by who owns its files: tinkex home, on its machine")
    return core_of(request)


ROUTES: list[Route] = [
    route("GET", paths.COLLECT_HOME, collectable, Collected),
    route("POST", paths.COLLECT_HOME, collect, Collected),
]
