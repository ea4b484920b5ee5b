"""Polls: one future, many samples at once, and giving one up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.http.answers import CompleteMetadata, Done
from tinkex.server.http.exchange import (
    PROTOBUF,
    answer,
    core_of,
    nothing,
    read_json,
    tenant_of,
    while_connected,
)
from tinkex.server.http.routing import route
from tinkex.server.polls import Large, Pending
from tinkex.server.protocol.fields import Fields
from tinkex.server.refusals import Refusal
from tinkex.server.sampling.completion_feed import Completion
from tinkex.types.futures import (
    FuturesRetrieveResponse,
    RequestFailedResponse,
    TryAgainResponse,
)
from tinkex.wire import routes as paths

_ACKNOWLEDGED = 100_000
_CURSOR_LIMIT = 2**63 - 1


async def retrieve(request: Request) -> Response:
    tenant = tenant_of(request)
    request_id, metadata_first = _wanted(await read_json(request))
    futures = core_of(request).futures
    found = await while_connected(request, futures.retrieve(tenant, request_id, metadata_first))
    if isinstance(found, Pending):
        return answer(
            {
                "type": "try_again",
                "request_id": found.request_id,
                "queue_state": found.queue_state,
                "queue_state_reason": found.reason,
            },
            408,
        )
    if isinstance(found, Large):
        return answer({"status": "complete_metadata", "response_payload_size": found.size})
    media_type = PROTOBUF if found.kind == "protobuf" else "application/json"
    return Response(found.body, media_type=media_type)


async def retrieve_many(request: Request) -> Response:
    tenant = tenant_of(request)
    core = core_of(request)
    asked = _news(await read_json(request))
    stream = core.sampling.completions(tenant, asked.sampler_id, asked.clone)
    core.sampling.acknowledge(tenant, asked.acknowledged)
    stream.trim(asked.cursor)
    hold = core.settings.timings.poll_hold_s
    ends = await while_connected(request, stream.after(asked.cursor, hold))
    last = ends[-1].cursor if ends else asked.cursor
    return answer({"completions": [_completion(end) for end in ends], "cursor": last})


async def cancel(request: Request) -> Response:
    tenant = tenant_of(request)
    request_id = _unwanted(await read_json(request))
    core_of(request).sampling.cancel(tenant, request_id)
    return nothing()


def _wanted(fields: Fields) -> tuple[str, bool]:
    found = fields.text("request_id"), fields.flag("allow_metadata_only", False)
    fields.finish()
    return found


def _unwanted(fields: Fields) -> str:
    request_id = fields.text("request_id")
    fields.finish()
    return request_id


@dataclass(frozen=True, slots=True)
class _News:
    """Whose samples, from where on, and which of them need not be kept any longer."""

    sampler_id: str
    clone: int
    cursor: int
    acknowledged: list[str]


def _news(fields: Fields) -> _News:
    target = fields.nested("target")
    if target is None:
        raise Refusal("target is required")
    sampler_id = target.text("sampling_session_id")
    clone = target.integer("cloned_sampler_id", low=0, high=_CURSOR_LIMIT, default=0)
    target.finish()
    cursor = fields.integer("prev_cursor", low=0, high=_CURSOR_LIMIT, default=0)
    acknowledged = fields.texts("retrieved_request_ids", limit=_ACKNOWLEDGED) or []
    fields.raw("timeout")
    fields.finish()
    return _News(sampler_id, clone, cursor, acknowledged)


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
        PROTOBUF,
        reads=_wanted,
        also={408: (TryAgainResponse,)},
    ),
    route("POST", paths.RETRIEVE_FUTURES, retrieve_many, FuturesRetrieveResponse, reads=_news),
    route("POST", paths.CANCEL_FUTURE, cancel, Done, reads=_unwanted),
]
