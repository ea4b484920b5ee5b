"""What signed links lead to: a checkpoint's files and archive, a session's trace. No key is asked.

A link says on whose behalf it was made; what it leads to must still exist and be theirs to read.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from functools import partial
from typing import Any

from starlette.concurrency import iterate_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from tinkex.server.checkpoints import byte_ranges
from tinkex.server.checkpoints.archive import Archive
from tinkex.server.checkpoints.service import Checkpoints
from tinkex.server.checkpoints.signing import LINK_FIELDS, SignatureRefused
from tinkex.server.http.answers import Refused
from tinkex.server.http.exchange import core_of
from tinkex.server.http.large_answers import large
from tinkex.server.http.queries import Query
from tinkex.server.http.routing import route
from tinkex.server.refusals import NotFound, Refusal
from tinkex.server.storage import manifest
from tinkex.server.storage.database.checkpoints import CheckpointRow
from tinkex.server.tracing import trace_events
from tinkex.types.tinker_path import checkpoint_path
from tinkex.wire import routes as paths

_BYTES, _TAR = "application/octet-stream", "application/x-tar"


class Forbidden(Refusal):
    """The link is not, or no longer, good."""

    status = 403


async def file(request: Request) -> Response:
    core, tenant = core_of(request), _tenant(request)
    row = await _row(request, tenant)
    name = request.path_params["file"]
    async with core.downloads.of(tenant):
        record = (await core.checkpoints.files(row)).get(name)
        if record is None:
            raise NotFound(f"{row.path} has no file {name[:200]!r}")
        folder = await core.checkpoints.folder(row)
    digest = base64.b64encode(bytes.fromhex(record.sha256)).decode()
    headers = {"etag": f'"sha256-{record.sha256}"', "repr-digest": f"sha-256=:{digest}:"}
    return FileResponse(folder / name, media_type=_BYTES, headers=headers)


async def archive(request: Request) -> Response:
    core, tenant = core_of(request), _tenant(request)
    row = await _row(request, tenant)
    async with core.downloads.of(tenant):
        elsewhere = await core.checkpoints.archive_link(row)
        if elsewhere is not None:
            return RedirectResponse(elsewhere, 302)
        tar = await archive_of(core.checkpoints, row)
    headers = {"etag": f'"{row.digest}"', "accept-ranges": "bytes"}
    same = request.headers.get("if-range", headers["etag"]) == headers["etag"]
    try:
        span = byte_ranges.asked(request.headers.get("range") if same else None, tar.size)
    except byte_ranges.OutOfRange as error:
        return Response(str(error), 416, {"content-range": f"bytes */{tar.size}"})
    if span is None:
        return _tar(request, tar, 200, byte_ranges.Span(0, tar.size, tar.size), headers)
    return _tar(request, tar, 206, span, {**headers, "content-range": span.header})


async def archive_of(checkpoints: Checkpoints, row: CheckpointRow) -> Archive:
    """All files of a checkpoint in one tar."""
    names = await checkpoints.files(row)
    return Archive(await checkpoints.folder(row), [*names, manifest.MANIFEST_NAME])


def _tar(
    request: Request, tar: Archive, status: int, span: byte_ranges.Span, headers: dict[str, str]
) -> Response:
    headers = {**headers, "content-length": str(span.end - span.start)}
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type=_TAR)
    blocks: Iterator[bytes] = tar.part(span.start, span.end)
    return StreamingResponse(iterate_in_threadpool(blocks), status, headers, media_type=_TAR)


async def session_trace(request: Request) -> Response:
    core = core_of(request)
    tenant = _tenant(request)
    make = partial(core.traces.encode, tenant, request.path_params["session_id"])
    return await large(core, tenant, make, trace_events.CONTENT_TYPE)


async def _row(request: Request, tenant: str) -> CheckpointRow:
    parts = request.path_params
    path = checkpoint_path(parts["run"], parts["kind"], parts["name"])
    return await core_of(request).checkpoints.find(tenant, path)


def _tenant(request: Request) -> str:
    try:
        return core_of(request).links.check(request.url.path, request.query_params)
    except SignatureRefused as error:
        raise Forbidden(str(error)) from error


def _signature(query: Query) -> None:
    """What `links.check` looks at; a link is taken as it was given."""
    for name in LINK_FIELDS:
        query.optional_text(name)


_SIGNED: dict[str, Any] = {"asks": _signature, "also": {403: (Refused,)}, "needs_key": False}

ROUTES: list[Route] = [
    route("GET", paths.FILES + "/{run}/{kind}/{name}/{file:path}", file, _BYTES, **_SIGNED),
    route("GET", paths.ARCHIVES + "/{run}/{kind}/{name}.tar", archive, _TAR, **_SIGNED),
    route(
        "GET",
        paths.TRACES + "/{session_id}.json",
        session_trace,
        trace_events.CONTENT_TYPE,
        **_SIGNED,
    ),
]
