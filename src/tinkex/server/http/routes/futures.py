"""Polls: one future, many samples at once, and giving one up."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.http.answers import Done
from tinkex.server.http.bodies import read
from tinkex.server.http.exchange import (
    answer,
    core_of,
    nothing,
    tenant_of,
    while_connected,
)
from tinkex.server.http.routing import route
from tinkex.server.polls import Large, Pending
from tinkex.server.protocol import requests
from tinkex.server.sampling.completion_feed import Completion
from tinkex.types.futures import (
    CompleteMetadata,
    FuturesRetrieveResponse,
    RequestFailedResponse,
    TryAgainResponse,
)
from tinkex.wire import routes as paths
from tinkex.wire.limits import JSON_TYPE, METADATA_STATUS, PENDING_TYPE, PROTOBUF_TYPE


async def retrieve(request: Request) -> Response:
    tenant = tenant_of(request)
    asked = await read(request, requests.RETRIEVE_FUTURE)
    futures = core_of(request).futures
    found = await while_connected(
        request, futures.retrieve(tenant, asked.request_id, asked.allow_metadata_only)
    )
    if isinstance(found, Pending):
        return answer(
            {
                "type": PENDING_TYPE,
                "request_id": found.request_id,
                "queue_state": found.queue_state,
                "queue_state_reason": found.reason,
            },
            408,
        )
    if isinstance(found, Large):
        return answer({"status": METADATA_STATUS, "response_payload_size": found.size})
    media_type = PROTOBUF_TYPE if found.kind == "protobuf" else JSON_TYPE
    return Response(found.body, media_type=media_type)


async def retrieve_many(request: Request) -> Response:
    tenant = tenant_of(request)
    core = core_of(request)
    asked = await read(request, requests.RETRIEVE_FUTURES)
    target, cursor = asked.target, asked.prev_cursor
    sampler_id, clone = target.sampling_session_id, target.cloned_sampler_id
    stream = await core.sampling.completions(tenant, sampler_id, clone)
    core.sampling.acknowledge(tenant, asked.retrieved_request_ids)
    stream.trim(cursor)
    hold = core.settings.timings.poll_hold_s
    ends = await while_connected(request, stream.after(cursor, hold))
    last = ends[-1].cursor if ends else cursor
    return answer({"completions": [_completion(end) for end in ends], "cursor": last})


async def cancel(request: Request) -> Response:
    tenant = tenant_of(request)
    asked = await read(request, requests.CANCEL_FUTURE)
    core_of(request).sampling.cancel(tenant, asked.request_id)
    return nothing()


def _completion(end: Completion) -> dict[str, object]:
    if end.failed:
        return {"state": "failed", "request_id": end.request_id}
    size = {"response_payload_uncompressed_size": end.size}
    return {"state": "finished", "request_id": end.request_id, **size}


ROUTES: list[Route] = [
    route(
        "POST",
        paths.RETRIEVE_FUTURE,
        retrieve,
        dict[str, Any],
        CompleteMetadata,
        RequestFailedResponse,
        PROTOBUF_TYPE,
        reads=requests.RETRIEVE_FUTURE,
        also={408: (TryAgainResponse,)},
    ),
    route(
        "POST",
        paths.RETRIEVE_FUTURES,
        retrieve_many,
        FuturesRetrieveResponse,
        reads=requests.RETRIEVE_FUTURES,
    ),
    route("POST", paths.CANCEL_FUTURE, cancel, Done, reads=requests.CANCEL_FUTURE),
]
