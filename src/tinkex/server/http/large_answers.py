"""Answers of megabytes: a few of each key at once, from their making until they were taken.

They are made in their tenant's turn, off the event loop and in pieces: nobody waits for another's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tinkex.server.core import Core
from tinkex.server.protocol.written import written


class LargeAnswer(Response):
    """Lets go of its place in memory when it was taken, or its client went away."""

    def __init__(self, body: bytes, media_type: str, release: Callable[[], None]) -> None:
        super().__init__(body, media_type=media_type)
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._release()


async def large(
    core: Core, tenant: str, make: Callable[[], Awaitable[bytes]], media_type: str
) -> Response:
    """An answer of the bytes that `make` gives."""
    turn = core.large_answers.of(tenant)
    await turn.acquire()
    try:
        body = await make()
    except BaseException:
        turn.release()
        raise
    return LargeAnswer(body, media_type, turn.release)


async def large_json(
    core: Core, tenant: str, find: Callable[[], Awaitable[Mapping[str, Any]]]
) -> Response:
    """An answer of the values that `find` gives."""

    async def make() -> bytes:
        values = await find()
        return await core.reading.run(tenant, partial(written, values))

    return await large(core, tenant, make, "application/json")
