"""Checkpoints: listed, described, published, copied, given a time to live, taken away, deleted."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server import presentation
from tinkex.server.checkpoint_rules import SCHEME
from tinkex.server.refusals import Refusal
from tinkex.server.routes import queries, route
from tinkex.server.routes.http import answer, core_of, nothing, read_json, tenant_of
from tinkex.wire import routes as paths

_TOKEN_HEADER = "x-tinker-weights-access-token"
_KEY_HEADER = "x-idempotency-key"
_FAR = 2**62


async def of_run(request: Request) -> Response:
    core, tenant = core_of(request), tenant_of(request)
    return answer(
        await core.browsing.checkpoints_of_run(tenant, request.path_params["training_run_id"])
    )


async def of_tenant(request: Request) -> Response:
    core, tenant = core_of(request), tenant_of(request)
    page = queries.page(request.query_params, 100)
    return answer(await core.browsing.checkpoints(tenant, page))


async def weights_info(request: Request) -> Response:
    core, tenant = core_of(request), tenant_of(request)
    fields = await read_json(request)
    path = fields.text("tinker_path")
    fields.finish()
    return answer(presentation.weights_info(core.checkpoints.find(tenant, path)))


async def copy_weights(request: Request) -> Response:
    core, tenant = core_of(request), tenant_of(request)
    fields = await read_json(request)
    path, project_id = fields.text("source_path"), fields.optional_text("destination_project_id")
    ttl_seconds = fields.optional_integer("ttl_seconds", low=-_FAR, high=_FAR)
    token = fields.optional_text("weights_access_token") or request.headers.get(_TOKEN_HEADER)
    if fields.has("session_id") or fields.has("model_seq_id"):
        raise Refusal("session_id and model_seq_id: a copy gets a session and run of its own here")
    fields.finish()
    bearer = None if token is None else core.tenants.identify(token)
    source = core.checkpoints.find(tenant, path, bearer)
    key = request.headers.get(_KEY_HEADER)
    copy = await core.checkpoints.copy(tenant, source, project_id, ttl_seconds, key)
    return answer({"tinker_path": copy})


async def delete(request: Request) -> Response:
    core, tenant = core_of(request), tenant_of(request)
    await core.checkpoints.delete(tenant, path_of(request))
    return nothing()


async def publish(request: Request) -> Response:
    core, tenant = core_of(request), tenant_of(request)
    await core.checkpoints.set_public(tenant, path_of(request), True)
    return nothing()


async def unpublish(request: Request) -> Response:
    core, tenant = core_of(request), tenant_of(request)
    await core.checkpoints.set_public(tenant, path_of(request), False)
    return nothing()


async def set_ttl(request: Request) -> Response:
    core, tenant = core_of(request), tenant_of(request)
    fields = await read_json(request)
    ttl_seconds = fields.optional_integer("ttl_seconds", low=-_FAR, high=_FAR)
    fields.finish()
    await core.checkpoints.set_ttl(tenant, path_of(request), ttl_seconds)
    return nothing()


def path_of(request: Request) -> str:
    parts = request.path_params
    return f"{SCHEME}{parts['training_run_id']}/{parts['kind']}/{parts['name']}"


ONE = f"{paths.RUN_CHECKPOINTS}/{{kind}}/{{name}}"

ROUTES: list[Route] = [
    route("POST", paths.WEIGHTS_INFO, weights_info),
    route("POST", paths.COPY_WEIGHTS, copy_weights),
    route("GET", paths.CHECKPOINTS, of_tenant),
    route("GET", paths.RUN_CHECKPOINTS, of_run),
    route("DELETE", ONE, delete),
    route("POST", f"{ONE}/publish", publish),
    route("DELETE", f"{ONE}/publish", unpublish),
    route("PUT", f"{ONE}/ttl", set_ttl),
]
