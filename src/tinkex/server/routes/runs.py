"""Training runs and sessions, for people who browse."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.routes import queries, route, searching
from tinkex.server.routes.http import answer, core_of, nothing, read_json, tenant_of
from tinkex.wire import routes as paths


async def list_runs(request: Request) -> Response:
    core, tenant = core_of(request), tenant_of(request)
    query = request.query_params
    found = await core.browsing.training_runs(
        tenant, queries.page(query, 20), queries.scope(query), query.get("project_id")
    )
    return answer(found)


async def get_run(request: Request) -> Response:
    core, tenant = core_of(request), tenant_of(request)
    scope = queries.scope(request.query_params)
    return answer(
        await core.browsing.training_run(tenant, request.path_params["training_run_id"], scope)
    )


async def list_sessions(request: Request) -> Response:
    core, tenant = core_of(request), tenant_of(request)
    query = request.query_params
    found = await core.browsing.sessions(tenant, queries.page(query, 20), queries.scope(query))
    return answer(found)


async def get_session(request: Request) -> Response:
    core, tenant = core_of(request), tenant_of(request)
    scope = queries.scope(request.query_params)
    return answer(await core.browsing.session(tenant, request.path_params["session_id"], scope))


async def search_sessions(request: Request) -> Response:
    core, tenant = core_of(request), tenant_of(request)
    search = searching.read(await read_json(request))
    return answer(await core.browsing.search(tenant, search))


async def assign_project(request: Request) -> Response:
    core, tenant = core_of(request), tenant_of(request)
    fields = await read_json(request)
    project_id = fields.text("project_id", limit=256)
    fields.finish()
    await core.browsing.assign_project(tenant, request.path_params["session_id"], project_id)
    return nothing()


ROUTES: list[Route] = [
    route("GET", paths.TRAINING_RUNS, list_runs),
    route("GET", paths.TRAINING_RUN, get_run),
    route("GET", paths.SESSIONS, list_sessions),
    route("POST", paths.SEARCH_SESSIONS, search_sessions),
    route("GET", paths.SESSION, get_session),
    route("PUT", paths.SESSION_PROJECT, assign_project),
]
