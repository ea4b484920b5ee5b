"""Reads request bodies, bounded in size, time and their tenant's share of the memory set aside.

A client that stops half-way changes nothing. Large bodies are decompressed and read in their
tenant's turn, off the event loop. They count for as long as they are held, decompressed: a few
bytes of zstd can be megabytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request

from tinkex.server.http.exchange import core_of, tenant_of
from tinkex.server.protocol.json_body import parse
from tinkex.server.protocol.reading import Reader
from tinkex.server.refusals import Refusal, TooLarge
from tinkex.server.settings import KIB
from tinkex.wire.compression import claimed_size, decompress
from tinkex.wire.errors import WireError
from tinkex.wire.limits import ZSTD_ENCODING

INLINE_BYTES = 32 * KIB
"""A body up to this size is read at once: a thread would take longer to get to it."""
STRANGERS_BYTES = 64 * KIB
"""Largest body before a key is known."""
_STRANGER = ""
"""The tenant that all requests without a key yet count as."""

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


@asynccontextmanager
async def received(request: Request, limit: int | None = None) -> AsyncIterator[bytes]:
    """The whole body, decompressed if it is marked as compressed, of at most `limit` bytes on the
    wire, or the limit of JSON. It is counted until the block ends."""
    if limit is None:
        limit = core_of(request).settings.limits.json_body_bytes
    with core_of(request).receiving.growing(tenant_of(request)) as take:
        body = await _within_time(request, limit, take)
        yield await _unpacked(request, body, take)


async def read(request: Request, reader: Reader[M]) -> M:
    """The parsed body."""
    async with received(request) as body:
        return await in_turn(request, len(body), partial(reader.parse, body))


async def read_strangers(request: Request, reader: Reader[M]) -> M:
    """The parsed short body of a client without a key."""
    with core_of(request).receiving.growing(_STRANGER) as take:
        return reader.parse(await _within_time(request, STRANGERS_BYTES, take))


@asynccontextmanager
async def received_values(request: Request) -> AsyncIterator[tuple[dict[str, Any], bytes]]:
    """A body's values, and the body, for work whose content is checked when its turn comes."""
    async with received(request) as body:
        yield await in_turn(request, len(body), partial(parse, body)), body


async def in_turn(request: Request, size: int, work: Callable[[], T]) -> T:
    """Do some work on so many bytes of a body: at once if they are few, else in its tenant's
    turn."""
    if size <= INLINE_BYTES:
        return work()
    return await core_of(request).reading.run(tenant_of(request), work)


async def _within_time(request: Request, limit: int, take: Callable[[int], None]) -> bytes:
    seconds = core_of(request).settings.limits.body_timeout_s
    try:
        async with asyncio.timeout(seconds):
            return await _whole(request, limit, take)
    except TimeoutError:
        raise Refusal(f"the body did not arrive within {seconds:.0f} s") from None


async def _whole(request: Request, limit: int, take: Callable[[int], None]) -> bytes:
    claimed = request.headers.get("content-length", "0")
    if claimed.isdecimal() and int(claimed) > limit:
        raise TooLarge(f"the body has {int(claimed)} bytes; the limit is {limit}")
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise TooLarge(f"the body has more than {limit} bytes, the limit")
        take(len(part))
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _unpacked(request: Request, body: bytes, take: Callable[[int], None]) -> bytes:
    encoding = request.headers.get("content-encoding", "identity")
    if encoding == "identity":
        return body
    if encoding != ZSTD_ENCODING:
        known = f"use {ZSTD_ENCODING} or none"
        raise Refusal(f"content-encoding {encoding[:32]!r} is not known: {known}")
    limit = core_of(request).settings.limits.decompressed_bytes
    try:
        size = claimed_size(body, limit)
        take(size)
        return await in_turn(request, size, partial(decompress, body, limit))
    except WireError as error:
        raise TooLarge(str(error)) if "limit" in error.problem else Refusal(str(error)) from None
