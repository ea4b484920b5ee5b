"""Checkpoints: listed, described, published, copied, given a time to live, taken away, deleted."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.http.answers import Done
from tinkex.server.http.bodies import read
from tinkex.server.http.exchange import (
    answer,
    bearer_of,
    core_of,
    nothing,
    repeat_key_of,
    tenant_of,
    viewer_of,
)
from tinkex.server.http.queries import Query
from tinkex.server.http.routing import route
from tinkex.server.protocol import requests
from tinkex.server.views import json_shapes
from tinkex.server.views.queries import Page
from tinkex.types.checkpoints import (
    CheckpointsListResponse,
    CopyWeightsResponse,
    WeightsInfoResponse,
)
from tinkex.types.tinker_path import checkpoint_path
from tinkex.wire import routes as paths
from tinkex.wire.limits import HEADER_WEIGHTS_ACCESS_TOKEN


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
    path = (await read(request, requests.WEIGHTS_INFO)).tinker_path
    row = await core.checkpoints.find(tenant, path, await bearer_of(request, path))
    return answer(json_shapes.weights_info(row))


async def copy_weights(request: Request) -> Response:
    core, tenant = core_of(request), tenant_of(request)
    asked = await read(request, requests.COPY_WEIGHTS)
    token = asked.weights_access_token or request.headers.get(HEADER_WEIGHTS_ACCESS_TOKEN)
    owner = await bearer_of(request, asked.source_path)
    bearer = owner if token is None else core.tenants.identify(token)
    source = await core.checkpoints.find(tenant, asked.source_path, bearer)
    key = repeat_key_of(request)
    project, ttl_seconds = asked.destination_project_id, asked.ttl_seconds
    copy = await core.checkpoints.copy(tenant, source, project, ttl_seconds, key)
    return answer({"tinker_path": copy})


async def delete(request: Request) -> Response:
    core, tenant = core_of(request), tenant_of(request)
    await core.checkpoints.delete(tenant, path_of(request), repeat_key_of(request))
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
    asked = await read(request, requests.CHECKPOINT_TTL)
    await core.checkpoints.set_ttl(tenant, path_of(request), asked.ttl_seconds)
    return nothing()


def path_of(request: Request) -> str:
    parts = request.path_params
    return checkpoint_path(parts["training_run_id"], parts["kind"], parts["name"])


def _page(query: Query) -> Page:
    return query.page(100)


def one(path: str) -> str:
    """A path of the protocol that is about one checkpoint, with its id in two parts."""
    return path.replace("{checkpoint_id}", "{kind}/{name}")


ROUTES: list[Route] = [
    route(
        "POST", paths.WEIGHTS_INFO, weights_info, WeightsInfoResponse, reads=requests.WEIGHTS_INFO
    ),
    route(
        "POST", paths.COPY_WEIGHTS, copy_weights, CopyWeightsResponse, reads=requests.COPY_WEIGHTS
    ),
    route("GET", paths.CHECKPOINTS, of_tenant, CheckpointsListResponse, asks=_page),
    route("GET", paths.RUN_CHECKPOINTS, of_run, CheckpointsListResponse),
    route("DELETE", one(paths.CHECKPOINT), delete, Done),
    route("POST", one(paths.CHECKPOINT_PUBLISH), publish, Done),
    route("DELETE", one(paths.CHECKPOINT_PUBLISH), unpublish, Done),
    route("PUT", one(paths.CHECKPOINT_TTL), set_ttl, Done, reads=requests.CHECKPOINT_TTL),
]
