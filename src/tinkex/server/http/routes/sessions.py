"""Sessions: open, keep alive, finish."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.http.answers import Done
from tinkex.server.http.exchange import answer, core_of, nothing, read_json, tenant_of
from tinkex.server.http.routing import route
from tinkex.server.protocol.fields import Fields
from tinkex.server.tenancy.sessions import NewSession
from tinkex.types.sessions import CreateSessionResponse, SessionHeartbeatResponse
from tinkex.wire import routes as paths

REASONS = ("success", "errored", "interrupted")


async def create(request: Request) -> Response:
    tenant = tenant_of(request)
    key = request.headers.get("x-idempotency-key")
    asked = replace(_new_session(await read_json(request)), idempotency_key=key)
    session_id = await core_of(request).sessions.create(tenant, asked)
    return answer({"type": "create_session", "session_id": session_id})


async def heartbeat(request: Request) -> Response:
    tenant = tenant_of(request)
    core_of(request).sessions.alive(tenant, _alive(await read_json(request)))
    return answer({"type": "session_heartbeat"})


async def finish(request: Request) -> Response:
    tenant = tenant_of(request)
    name, detail = _ending(await read_json(request))
    session_id = request.path_params["session_id"]
    core = core_of(request)
    await core.sessions.finish(tenant, session_id, name, detail)
    core.sampling.session_ended(session_id)
    return nothing()


def _new_session(fields: Fields) -> NewSession:
    asked = NewSession(
        tags=tuple(fields.texts("tags", limit=100) or ()),
        user_metadata=fields.mapping("user_metadata") or {},
        sdk_version=fields.optional_text("sdk_version", limit=64),
        project_id=fields.optional_text("project_id", limit=256),
        display_name=fields.optional_text("display_name", limit=256),
        idempotency_key=None,
    )
    fields.finish()
    return asked


def _alive(fields: Fields) -> str:
    session_id = fields.text("session_id")
    fields.finish()
    return session_id


def _ending(fields: Fields) -> tuple[str, str | None]:
    reason = fields.nested("reason")
    name = "success" if reason is None else reason.choice("type", REASONS, "success")
    detail = fields.optional_text("detail", limit=4096)
    fields.finish()
    return name, detail


ROUTES: list[Route] = [
    route("POST", paths.CREATE_SESSION, create, CreateSessionResponse, reads=_new_session),
    route("POST", paths.SESSION_HEARTBEAT, heartbeat, SessionHeartbeatResponse, reads=_alive),
    route("POST", paths.FINISH_SESSION, finish, Done, reads=_ending),
]
