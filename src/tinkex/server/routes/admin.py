"""The audit log, usage and storage: from our own records."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.refusals import Refusal
from tinkex.server.routes import queries, route
from tinkex.server.routes.http import answer, core_of, tenant_of
from tinkex.wire import routes as paths

_EVENT_TYPES = ("all", "checkpoints", "projects", "teams", "organizations")


async def audit(request: Request) -> Response:
    core, tenant = core_of(request), tenant_of(request)
    query = request.query_params
    kind = query.get("event_type", "all")
    if kind not in _EVENT_TYPES:
        raise Refusal(f"event_type is {kind[:64]!r}: use one of {', '.join(_EVENT_TYPES)}")
    day = queries.optional_day(query, "day")
    return answer(await core.browsing.audit(tenant, None if kind == "all" else kind, day))


async def usage(request: Request) -> Response:
    core, tenant = core_of(request), tenant_of(request)
    query = request.query_params
    start, end = queries.moment(query, "starting_on"), queries.moment(query, "ending_before")
    return answer(await core.browsing.usage(tenant, start, end))


async def storage(request: Request) -> Response:
    core, tenant = core_of(request), tenant_of(request)
    project_id = request.query_params.get("project_id")
    return answer(await core.browsing.storage(tenant, project_id))


ROUTES: list[Route] = [
    route("GET", paths.AUDIT_LOG, audit),
    route("GET", paths.BILLING_USAGE, usage),
    route("GET", paths.CURRENT_CHECKPOINT_STORAGE, storage),
]
