"""How clients take things away: signed links over a network, plain files to who owns them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.checkpoints.links import LINK_LIFETIME_S
from tinkex.server.http.answers import Link, TraceExport
from tinkex.server.http.exchange import answer, core_of, is_owner, origin_of, tenant_of
from tinkex.server.http.routes.checkpoints import one, path_of
from tinkex.server.http.routes.files import archive_of
from tinkex.server.http.routing import route
from tinkex.server.refusals import Refusal
from tinkex.server.storage.database.checkpoints import CheckpointRow
from tinkex.server.views import json_shapes
from tinkex.types.checkpoints import ExternalWeightsUrlsResponse
from tinkex.types.tinker_path import EXTERNAL_WEIGHTS
from tinkex.wire import routes as paths

_OPTIMIZER_STATE = "training.safetensors"
"""What an engine adds to the folder of a training checkpoint; no use to who loads an adapter."""


async def external_urls(request: Request) -> Response:
    """One link per file of an export."""
    core, tenant = core_of(request), tenant_of(request)
    row = await core.checkpoints.find(tenant, path_of(request))
    if row.kind != EXTERNAL_WEIGHTS:
        raise Refusal(f"{row.path} is no export: use save_weights_external, or its archive")
    async with core.downloads.of(tenant):
        return await _links(request, tenant, row, sorted(await core.checkpoints.files(row)))


async def adapter_urls(request: Request) -> Response:
    """One link per file of any checkpoint, its optimizer's state left out. An addition."""
    core, tenant = core_of(request), tenant_of(request)
    row = await core.checkpoints.find(tenant, path_of(request))
    async with core.downloads.of(tenant):
        files = sorted(await core.checkpoints.files(row))
        names = [name for name in files if name != _OPTIMIZER_STATE]
        return await _links(request, tenant, row, names)


async def archive_url(request: Request) -> Response:
    """A link to all files of any checkpoint in one tar."""
    core, tenant = core_of(request), tenant_of(request)
    row = await core.checkpoints.find(tenant, path_of(request))
    if not is_owner(request):
        async with core.downloads.of(tenant):
            url = await core.checkpoints.archive_link(row)
        return _found(request, {"url": url or core.links.archive(origin_of(request), tenant, row)})
    tar = await archive_of(core.checkpoints, row)
    path = await asyncio.to_thread(core.exports.write, f"{row.name}.tar", tar)
    return _found(request, {"url": path.as_uri()})


async def trace_export(request: Request) -> Response:
    """A link to a session's trace: made when it is fetched, so it is ready at once."""
    core, tenant = core_of(request), tenant_of(request)
    session_id = request.path_params["session_id"]
    await core.sessions.owned(tenant, session_id)
    if not is_owner(request):
        url = core.links.trace(origin_of(request), tenant, session_id)
        return answer({"status": "ready", "url": url})
    content = await core.traces.encode(tenant, session_id)
    path = await asyncio.to_thread(core.exports.write, f"{session_id}.json", [content])
    return answer({"status": "ready", "url": path.as_uri()})


async def _links(
    request: Request, tenant: str, row: CheckpointRow, names: Sequence[str]
) -> Response:
    core = core_of(request)
    if is_owner(request):
        folder = await core.checkpoints.folder(row)
        return _found(request, {"urls": {name: (folder / name).as_uri() for name in names}})
    origin = origin_of(request)
    urls = {
        name: await core.checkpoints.file_link(row, name)
        or core.links.file(origin, tenant, row, name)
        for name in names
    }
    return _found(request, {"urls": urls})


def _found(request: Request, values: Mapping[str, object]) -> Response:
    expires = int(core_of(request).clock.now()) + LINK_LIFETIME_S
    return answer({**values, "expires": json_shapes.moment(expires)})


ROUTES: list[Route] = [
    route("GET", one(paths.CHECKPOINT_EXTERNAL_URLS), external_urls, ExternalWeightsUrlsResponse),
    route("GET", one(paths.CHECKPOINT_ADAPTER_URLS), adapter_urls, ExternalWeightsUrlsResponse),
    route("GET", one(paths.CHECKPOINT_ARCHIVE), archive_url, Link),
    route("GET", paths.SESSION_TRACE_EXPORT, trace_export, TraceExport),
]
