"""The Prometheus page."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.http.exchange import core_of, guarded, tenant_of
from tinkex.server.http.request_counts import Requests
from tinkex.server.settings import is_loopback


async def metrics(request: Request) -> Response:
    """Open to this machine; others need a key."""
    if not _on_this_machine(request):
        tenant_of(request)
    from tinkex.server.http.prometheus import CONTENT_TYPE, Page
    from tinkex.server.http.state_metrics import state

    requests: Requests = request.app.state.requests
    page = Page(requests, await state(core_of(request)))
    return Response(page.text(), media_type=CONTENT_TYPE)


def _on_this_machine(request: Request) -> bool:
    return request.client is not None and is_loopback(request.client.host)


ROUTES: list[Route] = [Route("/metrics", guarded(metrics, "/metrics"), methods=["GET"])]
