"""Heads of requests have an end, whatever a client sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tinkex.server.http_parser import HEAD_BYTES, BoundedHttp


async def _length(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


@pytest.fixture
async def port() -> AsyncIterator[int]:
    app = Starlette(routes=[Route("/length", _length, methods=["POST"])])
    config = uvicorn.Config(app, http=BoundedHttp, log_config=None, lifespan="off", port=0)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        await server.shutdown()


async def _exchange(port: int, *pieces: bytes) -> bytes:
    """Send pieces one after the other and read until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = asyncio.create_task(reader.read(-1))
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        return await asyncio.wait_for(answer, 10)
    except OSError:
        return b"closed"
    finally:
        answer.cancel()
        writer.close()


@pytest.mark.parametrize("inside", [b"x-many: a\r\n" * 1000, b"a" * 10_000])
async def test_a_head_without_end_is_refused(port: int, inside: bytes) -> None:
    endless = [inside] * (3 * HEAD_BYTES // len(inside) + 1)
    answer = await _exchange(port, b"POST /length HTTP/1.1\r\nx-one: ", *endless)
    assert answer == b"closed" or b" 400 " in answer


async def test_bodies_and_second_requests_are_not_counted_as_heads(port: int) -> None:
    head = b"POST /length HTTP/1.1\r\nhost: x\r\ncontent-length: 400000\r\n"
    body = [b"b" * 100_000] * 4
    once = head + b"\r\n"
    last = head + b"connection: close\r\n\r\n"
    answer = await _exchange(port, once, *body, last[:20], last[20:], *body)
    assert answer.count(b" 200 ") == 2
    assert answer.count(b"400000") == 2
