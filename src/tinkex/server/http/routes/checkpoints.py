"""Checkpoints: listed, described, published, copied, given a time to live, taken away, deleted."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.checkpoints.rules import SCHEME
from tinkex.server.http.answers import Done
from tinkex.server.http.exchange import (
    answer,
    bearer_of,
    core_of,
    nothing,
    read_json,
    tenant_of,
    viewer_of,
)
from tinkex.server.http.queries import Query
from tinkex.server.http.routing import route
from tinkex.server.protocol.fields import Fields
from tinkex.server.refusals import Refusal
from tinkex.server.views import json_shapes
from tinkex.server.views.queries import Page
from tinkex.types.checkpoints import (
    CheckpointsListResponse,
    CopyWeightsResponse,
    WeightsInfoResponse,
)
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
    core, viewer = core_of(request), viewer_of(request)
    return answer(await core.browsing.checkpoints(viewer, _page(Query(request.query_params))))


async def weights_info(request: Request) -> Response:
    core, tenant = core_of(request), tenant_of(request)
    path = _path(await read_json(request))
    return answer(
        json_shapes.weights_info(core.checkpoints.find(tenant, path, bearer_of(request, path)))
    )


async def copy_weights(request: Request) -> Response:
    core, tenant = core_of(request), tenant_of(request)
    asked = _copy(await read_json(request))
    token = asked.token or request.headers.get(_TOKEN_HEADER)
    owner = bearer_of(request, asked.path)
    bearer = owner if token is None else core.tenants.identify(token)
    source = core.checkpoints.find(tenant, asked.path, bearer)
    key = request.headers.get(_KEY_HEADER)
    copy = await core.checkpoints.copy(tenant, source, asked.project_id, asked.ttl_seconds, key)
    return answer({"tinker_path": copy})


async def delete(request: Request) -> Response:
    core, tenant = core_of(request), tenant_of(request)
    await core.checkpoints.delete(tenant, path_of(request), request.headers.get(_KEY_HEADER))
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
    ttl_seconds = _ttl(await read_json(request))
    await core.checkpoints.set_ttl(tenant, path_of(request), ttl_seconds)
    return nothing()


def path_of(request: Request) -> str:
    parts = request.path_params
    return f"{SCHEME}{parts['training_run_id']}/{parts['kind']}/{parts['name']}"


@dataclass(frozen=True, slots=True)
class _Copy:
    path: str
    project_id: str | None
    ttl_seconds: int | None
    token: str | None


def _copy(fields: Fields) -> _Copy:
    asked = _Copy(
        path=fields.text("source_path"),
        project_id=fields.optional_text("destination_project_id"),
        ttl_seconds=fields.optional_integer("ttl_seconds", low=-_FAR, high=_FAR),
        token=fields.optional_text("weights_access_token"),
    )
    if fields.has("session_id") or fields.has("model_seq_id"):
        raise Refusal("session_id and model_seq_id: a copy gets a session and run of its own here")
    fields.finish()
    return asked


def _path(fields: Fields) -> str:
    path = fields.text("tinker_path")
    fields.finish()
    return path


def _ttl(fields: Fields) -> int | None:
    ttl_seconds = fields.optional_integer("ttl_seconds", low=-_FAR, high=_FAR)
    fields.finish()
    return ttl_seconds


def _page(query: Query) -> Page:
    return query.page(100)


ONE = f"{paths.RUN_CHECKPOINTS}/{{kind}}/{{name}}"

ROUTES: list[Route] = [
    route("POST", paths.WEIGHTS_INFO, weights_info, WeightsInfoResponse, reads=_path),
    route("POST", paths.COPY_WEIGHTS, copy_weights, CopyWeightsResponse, reads=_copy),
    route("GET", paths.CHECKPOINTS, of_tenant, CheckpointsListResponse, asks=_page),
    route("GET", paths.RUN_CHECKPOINTS, of_run, CheckpointsListResponse),
    route("DELETE", ONE, delete, Done),
    route("POST", f"{ONE}/publish", publish, Done),
    route("DELETE", f"{ONE}/publish", unpublish, Done),
    route("PUT", f"{ONE}/ttl", set_ttl, Done, reads=_ttl),
]
