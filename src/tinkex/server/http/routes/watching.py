"""News for those who watch: one stream of Server-Sent Events that can be resumed, and a poll.

    id: 7f3a21bc-121
    event: point
    data: {"run": …}

What comes in bursts is sent in batches, a few a second; the state of the whole server every two.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tinkex.server.http.exchange import answer, core_of
from tinkex.server.http.queries import Query
from tinkex.server.http.routing import dashboard_route as route
from tinkex.server.http.viewing import viewing
from tinkex.server.recording.events import News
from tinkex.server.refusals import Busy, Unauthorized
from tinkex.server.views.viewers import Viewer

CONTENT_TYPE = "text/event-stream"
STREAMS_PER_TENANT = 32
NOW_EVERY_S = 2.0
BATCH_EVERY_S = 0.2
_ID_LIMIT = 64


async def events(request: Request) -> Response:
    """One stream of events, resumed where `Last-Event-ID` says."""
    core, viewer = core_of(request), viewing(request)
    last = request.headers.get("last-event-id") or _after(Query(request.query_params))
    if core.events.watchers[viewer.tenant] >= STREAMS_PER_TENANT:
        raise Busy(f"{STREAMS_PER_TENANT} event streams of this key are open", 5.0)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(
        _stream(request, viewer, last), media_type=CONTENT_TYPE, headers=headers
    )


async def poll(request: Request) -> Response:
    """What happened since an id, for those who cannot hold a stream."""
    core, viewer = core_of(request), viewing(request)
    last = _after(Query(request.query_params))
    news = News(core.events.newest) if last is None else core.events.since(last, viewer.scope)
    shown = [
        {"id": core.events.id_of(event.number), "event": event.kind, "data": event.data}
        for event in news.events
    ]
    return answer({"id": news.id, "reset": news.missed, "events": shown})


async def _stream(request: Request, viewer: Viewer, last: str | None) -> AsyncIterator[str]:
    """Ends with the server, or when the key is no longer good."""
    with core_of(request).events.watching(viewer.tenant), suppress(Unauthorized):
        async for text in _texts(request, last):
            yield text


async def _texts(request: Request, last: str | None) -> AsyncIterator[str]:
    """First how this connection begins, then batches for ever."""
    core = core_of(request)
    clock, shown_at = core.clock, -math.inf
    if last is None:
        last = core.events.newest
        yield _event("hello", {"id": last}, last)
    while not core.events.is_closed:
        viewer = viewing(request)
        news = core.events.since(last, viewer.scope)
        last = news.id
        if news.missed:
            yield _event("reset", {"id": last}, last)
        if news.events:
            yield "".join(
                _event(event.kind, event.data, core.events.id_of(event.number))
                for event in news.events
            )
        if clock.monotonic() - shown_at >= NOW_EVERY_S:
            shown_at = clock.monotonic()
            yield _event("now", await core.now.show(viewer))
        await asyncio.sleep(BATCH_EVERY_S)
        rest = max(0.0, NOW_EVERY_S - (clock.monotonic() - shown_at))
        with suppress(TimeoutError):
            await asyncio.wait_for(core.events.after(last), rest)


def _event(kind: str, data: Mapping[str, Any], number: str | None = None) -> str:
    """One event as text; JSON has no line breaks of its own."""
    named = "" if number is None else f"id: {number}\n"
    return f"{named}event: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"


def _after(query: Query) -> str | None:
    given = query.optional_text("after")
    return None if given is None else given[:_ID_LIMIT]


ROUTES: list[Route] = [
    route("/events", events, CONTENT_TYPE, asks=_after),
    route("/poll", poll, "Poll", asks=_after),
]
