"""Tokens of one sample as they come: lines of JSON for our own client.

    {"type": "start", "request_id": …, "sample_sequence_ids": […]}
    {"type": "tokens", "index": 0, "tokens": […], "logprobs": […]}      as often as there are some
    {"type": "done", "result": base64 of the SampleResponse}            or
    {"type": "failed", "error": …, "category": …}

The body is that of `asample`. A client that goes away cancels its sample.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tinkex.engine.messages import Progress
from tinkex.server.core import Core
from tinkex.server.http.bodies import in_turn, received
from tinkex.server.http.exchange import core_of, tenant_of
from tinkex.server.http.routing import route
from tinkex.server.promises import Outcome
from tinkex.server.protocol import requests, sample_request
from tinkex.server.sampling.jobs import Job
from tinkex.wire import routes as paths

CONTENT_TYPE = "application/x-ndjson"
_HOLD_S = 3600.0


async def asample_stream(request: Request) -> Response:
    core, tenant = core_of(request), tenant_of(request)
    async with received(request) as body:
        parse = partial(sample_request.parse, body, core.settings.limits.num_samples)
        asked, size = await in_turn(request, len(body), parse), len(body)
    news: asyncio.Queue[Progress | None] = asyncio.Queue()
    job = await core.sampling.submit(tenant, asked, size, news.put_nowait)
    return StreamingResponse(_lines(core, tenant, job, news), media_type=CONTENT_TYPE)


async def _lines(
    core: Core, tenant: str, job: Job, news: asyncio.Queue[Progress | None]
) -> AsyncIterator[bytes]:
    ending = asyncio.ensure_future(job.promise.wait(_HOLD_S, patient=True))
    ending.add_done_callback(lambda _: news.put_nowait(None))
    try:
        yield _line(
            {
                "type": "start",
                "request_id": job.request_id,
                "sample_sequence_ids": job.sequence_ids,
            }
        )
        while (progress := await news.get()) is not None:
            yield _line(_progress(progress))
        yield _line(_end(await ending))
    finally:
        ending.cancel()
        if job.finished_at is None:
            core.sampling.cancel(tenant, job.request_id)
        else:
            core.sampling.fetched(job.request_id)


def _progress(progress: Progress) -> dict[str, Any]:
    return {
        "type": "tokens",
        "index": progress.index,
        "tokens": progress.tokens.tolist(),
        "logprobs": progress.logprobs.tolist(),
    }


def _end(outcome: Outcome | None) -> dict[str, Any]:
    if outcome is None:
        return {"type": "failed", "error": "the sample took too long", "category": "server"}
    if outcome.failed:
        return {"type": "failed", **json.loads(outcome.body)}
    return {"type": "done", "result": base64.b64encode(outcome.body).decode()}


def _line(values: dict[str, Any]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"


ROUTES: list[Route] = [
    route("POST", paths.ASAMPLE_STREAM, asample_stream, CONTENT_TYPE, reads=requests.ASAMPLE)
]
