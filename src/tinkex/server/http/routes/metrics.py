"""The Prometheus page."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.http import prometheus
from tinkex.server.http.exchange import core_of, guarded, tenant_of
from tinkex.server.http.metrics import CONTENT_TYPE
from tinkex.server.settings import is_loopback


async def metrics(request: Request) -> Response:
    """Open to this machine; others need a key."""
    if not _on_this_machine(request):
        tenant_of(request)
    requests: prometheus.Requests = request.app.state.requests
    state = await prometheus.state(core_of(request))
    text = requests.registry.render() + state.render()
    return Response(text, media_type=CONTENT_TYPE)


def _on_this_machine(request: Request) -> bool:
    return request.client is not None and is_loopback(request.client.host)


ROUTES: list[Route] = [Route("/metrics", guarded(metrics, "/metrics"), methods=["GET"])]
