"""The audit log, usage and storage: from our own records."""

from __future__ import annotations

from datetime import date, datetime

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.http.exchange import answer, core_of, tenant_of
from tinkex.server.http.queries import Query
from tinkex.server.http.routing import route
from tinkex.types.billing import (
    AuditLogResponse,
    BillingUsageResponse,
    CurrentCheckpointStorageUsageResponse,
)
from tinkex.wire import routes as paths

_EVENT_TYPES = ("all", "checkpoints", "projects", "teams", "organizations")


async def audit(request: Request) -> Response:
    core, tenant = core_of(request), tenant_of(request)
    kind, day = _events(Query(request.query_params))
    return answer(await core.browsing.audit(tenant, None if kind == "all" else kind, day))


async def usage(request: Request) -> Response:
    core, tenant = core_of(request), tenant_of(request)
    return answer(await core.browsing.usage(tenant, *_span(Query(request.query_params))))


async def storage(request: Request) -> Response:
    core, tenant = core_of(request), tenant_of(request)
    project_id = _project(Query(request.query_params))
    return answer(await core.browsing.storage(tenant, project_id))


def _events(query: Query) -> tuple[str, date | None]:
    return query.choice("event_type", _EVENT_TYPES), query.optional_day("day")


def _span(query: Query) -> tuple[datetime, datetime]:
    return query.moment("starting_on"), query.moment("ending_before")


def _project(query: Query) -> str | None:
    return query.optional_text("project_id")


ROUTES: list[Route] = [
    route("GET", paths.AUDIT_LOG, audit, AuditLogResponse, asks=_events),
    route("GET", paths.BILLING_USAGE, usage, BillingUsageResponse, asks=_span),
    route(
        "GET",
        paths.CURRENT_CHECKPOINT_STORAGE,
        storage,
        CurrentCheckpointStorageUsageResponse,
        asks=_project,
    ),
]
