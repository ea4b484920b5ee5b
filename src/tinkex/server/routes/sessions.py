"""Sessions: open, keep alive, finish."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.refusals import Refusal
from tinkex.server.routes import route
from tinkex.server.routes.http import answer, core_of, nothing, read_json, tenant_of
from tinkex.server.sessions import NewSession
from tinkex.wire import routes as paths

REASONS = ("success", "errored", "interrupted")


async def create(request: Request) -> Response:
    tenant = tenant_of(request)
    fields = await read_json(request)
    asked = NewSession(
        tags=tuple(fields.texts("tags", limit=100) or ()),
        user_metadata=fields.mapping("user_metadata") or {},
        sdk_version=fields.optional_text("sdk_version", limit=64),
        project_id=fields.optional_text("project_id", limit=256),
        display_name=fields.optional_text("display_name", limit=256),
        idempotency_key=request.headers.get("x-idempotency-key"),
    )
    fields.finish()
    session_id = await core_of(request).sessions.create(tenant, asked)
    return answer({"type": "create_session", "session_id": session_id})


async def heartbeat(request: Request) -> Response:
    tenant = tenant_of(request)
    fields = await read_json(request)
    core_of(request).sessions.alive(tenant, fields.text("session_id"))
    fields.finish()
    return answer({"type": "session_heartbeat"})


async def finish(request: Request) -> Response:
    tenant = tenant_of(request)
    fields = await read_json(request)
    reason = fields.mapping("reason") or {"type": "success"}
    name = reason.get("type")
    if name not in REASONS:
        raise Refusal(f"reason.type must be one of {', '.join(REASONS)}")
    detail = fields.optional_text("detail", limit=4096)
    fields.finish()
    session_id = request.path_params["session_id"]
    await core_of(request).sessions.finish(tenant, session_id, name, detail)
    return nothing()


ROUTES: list[Route] = [
    route("POST", paths.CREATE_SESSION, create),
    route("POST", paths.SESSION_HEARTBEAT, heartbeat),
    route("POST", paths.FINISH_SESSION, finish),
]
