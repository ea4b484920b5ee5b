"""Sessions: open, keep alive, finish."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.http.answers import Done
from tinkex.server.http.bodies import read
from tinkex.server.http.exchange import answer, core_of, nothing, repeat_key_of, tenant_of
from tinkex.server.http.routing import route
from tinkex.server.protocol import requests
from tinkex.server.tenancy.sessions import NewSession
from tinkex.types.sessions import CreateSessionResponse, SessionHeartbeatResponse
from tinkex.wire import routes as paths


async def create(request: Request) -> Response:
    tenant = tenant_of(request)
    key = repeat_key_of(request)
    asked = await read(request, requests.CREATE_SESSION)
    session = NewSession(
        tags=tuple(asked.tags),
        user_metadata=asked.user_metadata or {},
        sdk_version=asked.sdk_version or None,
        project_id=asked.project_id,
        display_name=asked.display_name,
        idempotency_key=key,
    )
    session_id = await core_of(request).sessions.create(tenant, session)
    return answer({"type": "create_session", "session_id": session_id})


async def heartbeat(request: Request) -> Response:
    tenant = tenant_of(request)
    asked = await read(request, requests.SESSION_HEARTBEAT)
    await core_of(request).sessions.alive(tenant, asked.session_id)
    return answer({"type": "session_heartbeat"})


async def finish(request: Request) -> Response:
    tenant = tenant_of(request)
    asked = await read(request, requests.FINISH_SESSION)
    session_id = request.path_params["session_id"]
    core = core_of(request)
    await core.sessions.finish(tenant, session_id, asked.reason.type, asked.detail)
    core.sampling.session_ended(session_id)
    return nothing()


ROUTES: list[Route] = [
    route(
        "POST", paths.CREATE_SESSION, create, CreateSessionResponse, reads=requests.CREATE_SESSION
    ),
    route(
        "POST",
        paths.SESSION_HEARTBEAT,
        heartbeat,
        SessionHeartbeatResponse,
        reads=requests.SESSION_HEARTBEAT,
    ),
    route("POST", paths.FINISH_SESSION, finish, Done, reads=requests.FINISH_SESSION),
]
