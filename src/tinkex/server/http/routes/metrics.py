"""The Prometheus page."""

from __future__ import annotations

import ipaddress

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.http import prometheus
from tinkex.server.http.exchange import core_of, guarded, tenant_of
from tinkex.server.http.metrics import CONTENT_TYPE


async def metrics(request: Request) -> Response:
    """Open to this machine; others need a key."""
    if not _on_this_machine(request):
        tenant_of(request)
    requests: prometheus.Requests = request.app.state.requests
    text = requests.registry.render() + prometheus.state(core_of(request)).render()
    return Response(text, media_type=CONTENT_TYPE)


def _on_this_machine(request: Request) -> bool:
    try:
        return request.client is not None and ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False


ROUTES: list[Route] = [Route("/metrics", guarded(metrics, "/metrics"), methods=["GET"])]
