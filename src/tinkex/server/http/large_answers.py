"""Answers of megabytes: a few of each key at once, from their making until they were taken.

They are made in their tenant's turn, off the event loop and in pieces: nobody waits for another's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from starlette.background import BackgroundTask
from starlette.responses import Response

from tinkex.server.core import Core
from tinkex.server.protocol.written import written


async def large(
    core: Core, tenant: str, make: Callable[[], Awaitable[bytes]], media_type: str
) -> Response:
    """An answer of the bytes that `make` gives."""
    turn = core.large_answers.of(tenant)
    await turn.acquire()

    async def taken() -> None:
        turn.release()

    try:
        body = await make()
    except BaseException:
        turn.release()
        raise
    return Response(body, media_type=media_type, background=BackgroundTask(taken))


async def large_json(
    core: Core, tenant: str, find: Callable[[], Awaitable[Mapping[str, Any]]]
) -> Response:
    """An answer of the values that `find` gives."""

    async def make() -> bytes:
        values = await find()
        return await core.reading.run(tenant, partial(written, values))

    return await large(core, tenant, make, "application/json")
