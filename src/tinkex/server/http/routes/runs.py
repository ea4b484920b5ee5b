"""Training runs and sessions, for people who browse."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.http.answers import Done
from tinkex.server.http.bodies import read
from tinkex.server.http.exchange import answer, core_of, nothing, tenant_of, viewer_of
from tinkex.server.http.queries import Query
from tinkex.server.http.routes import searching
from tinkex.server.http.routing import route
from tinkex.server.protocol import requests
from tinkex.server.views.queries import Page, Scope
from tinkex.types.checkpoints import TrainingRun, TrainingRunsResponse
from tinkex.types.sessions import (
    GetSessionResponse,
    ListSessionsResponse,
    SessionSearchResponse,
)
from tinkex.wire import routes as paths


async def list_runs(request: Request) -> Response:
    core, viewer = core_of(request), viewer_of(request)
    return answer(
        await core.browsing.training_runs(viewer, *_runs_wanted(Query(request.query_params)))
    )


async def get_run(request: Request) -> Response:
    core, tenant = core_of(request), tenant_of(request)
    scope = _scope(Query(request.query_params))
    return answer(
        await core.browsing.training_run(tenant, request.path_params["training_run_id"], scope)
    )


async def rename_run(request: Request) -> Response:
    """Give a run a name, or take it away. An addition of this server."""
    core, tenant = core_of(request), tenant_of(request)
    asked = await read(request, requests.RUN_NAME)
    await core.run_records.rename(tenant, request.path_params["training_run_id"], asked.name)
    return nothing()


async def note_run(request: Request) -> Response:
    """Keep a remark with a run, or take it away. An addition of this server."""
    core, tenant = core_of(request), tenant_of(request)
    asked = await read(request, requests.RUN_NOTE)
    await core.run_records.note(tenant, request.path_params["training_run_id"], asked.note)
    return nothing()


async def stop_run(request: Request) -> Response:
    """End a run; its checkpoints stay. An addition of this server."""
    core, tenant = core_of(request), tenant_of(request)
    await core.run_records.stop(tenant, request.path_params["training_run_id"])
    return nothing()


async def delete_run(request: Request) -> Response:
    """Delete an ended run with all its checkpoints. An addition of this server."""
    core, tenant = core_of(request), tenant_of(request)
    await core.run_records.delete(tenant, request.path_params["training_run_id"])
    return nothing()


async def list_sessions(request: Request) -> Response:
    core, viewer = core_of(request), viewer_of(request)
    return answer(
        await core.browsing.sessions(viewer, *_sessions_wanted(Query(request.query_params)))
    )


async def get_session(request: Request) -> Response:
    core, tenant = core_of(request), tenant_of(request)
    scope = _scope(Query(request.query_params))
    return answer(await core.browsing.session(tenant, request.path_params["session_id"], scope))


async def search_sessions(request: Request) -> Response:
    core, viewer = core_of(request), viewer_of(request)
    asked = await read(request, requests.SEARCH_SESSIONS)
    return answer(await core.browsing.search(viewer, searching.search(asked)))


async def assign_project(request: Request) -> Response:
    core, tenant = core_of(request), tenant_of(request)
    asked = await read(request, requests.SESSION_PROJECT)
    session_id = request.path_params["session_id"]
    await core.browsing.assign_project(tenant, session_id, asked.project_id)
    return nothing()


def _runs_wanted(query: Query) -> tuple[Page, Scope, str | None]:
    return query.page(20), query.scope(), query.optional_text("project_id")


def _sessions_wanted(query: Query) -> tuple[Page, Scope]:
    return query.page(20), query.scope()


def _scope(query: Query) -> Scope:
    return query.scope()


ROUTES: list[Route] = [
    route("GET", paths.TRAINING_RUNS, list_runs, TrainingRunsResponse, asks=_runs_wanted),
    route("GET", paths.TRAINING_RUN, get_run, TrainingRun, asks=_scope),
    route("DELETE", paths.TRAINING_RUN, delete_run, Done),
    route("PUT", paths.RUN_NAME, rename_run, Done, reads=requests.RUN_NAME),
    route("PUT", paths.RUN_NOTE, note_run, Done, reads=requests.RUN_NOTE),
    route("POST", paths.RUN_STOP, stop_run, Done),
    route("GET", paths.SESSIONS, list_sessions, ListSessionsResponse, asks=_sessions_wanted),
    route(
        "POST",
        paths.SEARCH_SESSIONS,
        search_sessions,
        SessionSearchResponse,
        reads=requests.SEARCH_SESSIONS,
    ),
    route("GET", paths.SESSION, get_session, GetSessionResponse, asks=_scope),
    route("PUT", paths.SESSION_PROJECT, assign_project, Done, reads=requests.SESSION_PROJECT),
]
