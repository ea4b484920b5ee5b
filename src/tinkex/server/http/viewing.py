"""Who may look at the dashboard: whoever may make requests, with a key or as a visitor."""

from __future__ import annotations

from starlette.requests import Request

from tinkex.server.http.exchange import sees_all, tenant_of
from tinkex.server.views.viewers import Viewer


def viewing(request: Request) -> Viewer:
    """Whose view this request gets; raises `Unauthorized`."""
    return Viewer(tenant_of(request), operator=sees_all(request))
