"""Training runs and sessions, for people who browse."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.http.answers import Done
from tinkex.server.http.exchange import answer, core_of, nothing, read_json, tenant_of, viewer_of
from tinkex.server.http.queries import Query
from tinkex.server.http.routes import searching
from tinkex.server.http.routing import route
from tinkex.server.protocol.fields import Fields
from tinkex.server.training.run_records import NAME_LIMIT, NOTE_LIMIT
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
    name = _name(await read_json(request))
    await core.run_records.rename(tenant, request.path_params["training_run_id"], name)
    return nothing()


async def note_run(request: Request) -> Response:
    """Keep a remark with a run, or take it away. An addition of this server."""
    core, tenant = core_of(request), tenant_of(request)
    note = _note(await read_json(request))
    await core.run_records.note(tenant, request.path_params["training_run_id"], note)
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
    search = searching.read(await read_json(request))
    return answer(await core.browsing.search(viewer, search))


async def assign_project(request: Request) -> Response:
    core, tenant = core_of(request), tenant_of(request)
    project_id = _project(await read_json(request))
    await core.browsing.assign_project(tenant, request.path_params["session_id"], project_id)
    return nothing()


def _runs_wanted(query: Query) -> tuple[Page, Scope, str | None]:
    return query.page(20), query.scope(), query.optional_text("project_id")


def _sessions_wanted(query: Query) -> tuple[Page, Scope]:
    return query.page(20), query.scope()


def _scope(query: Query) -> Scope:
    return query.scope()


def _name(fields: Fields) -> str | None:
    name = fields.optional_text("name", limit=NAME_LIMIT)
    fields.finish()
    return name


def _note(fields: Fields) -> str | None:
    note = fields.optional_text("note", limit=NOTE_LIMIT)
    fields.finish()
    return note


def _project(fields: Fields) -> str:
    project_id = fields.text("project_id", limit=256)
    fields.finish()
    return project_id


ROUTES: list[Route] = [
    route("GET", paths.TRAINING_RUNS, list_runs, TrainingRunsResponse, asks=_runs_wanted),
    route("GET", paths.TRAINING_RUN, get_run, TrainingRun, asks=_scope),
    route("DELETE", paths.TRAINING_RUN, delete_run, Done),
    route("PUT", paths.RUN_NAME, rename_run, Done, reads=_name),
    route("PUT", paths.RUN_NOTE, note_run, Done, reads=_note),
    route("POST", paths.RUN_STOP, stop_run, Done),
    route("GET", paths.SESSIONS, list_sessions, ListSessionsResponse, asks=_sessions_wanted),
    route(
        "POST",
        paths.SEARCH_SESSIONS,
        search_sessions,
        SessionSearchResponse,
        reads=searching.read,
    ),
    route("GET", paths.SESSION, get_session, GetSessionResponse, asks=_scope),
    route("PUT", paths.SESSION_PROJECT, assign_project, Done, reads=_project),
]
