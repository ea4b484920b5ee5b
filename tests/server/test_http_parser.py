"""Heads of requests have an end, whatever a client sends; small answers leave in one piece."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tinkex.server.connections.http_parser import (
    HEAD_BYTES,
    JOINED_BYTES,
    MOST_PIPELINED,
    BoundedHttp,
    OneWrite,
)


async def _length(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


async def _names(request: Request) -> Response:
    await request.body()
    return PlainTextResponse(", ".join(request.headers))


async def _echo(request: Request) -> Response:
    return Response(await request.body())


@pytest.fixture
async def port() -> AsyncIterator[int]:
    routes = [
        Route(f"/{each.__name__[1:]}", each, methods=["POST"]) for each in (_length, _names, _echo)
    ]
    app = Starlette(routes=routes)
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
        return await asyncio.wait_for(answer, 60)
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


@pytest.mark.parametrize("inside", [b"x-many: a\r\n" * 1000, b"a" * 10_000])
@pytest.mark.parametrize("before", [b"0\r\nx-one: ", b"1;"])
async def test_trailers_and_extensions_without_end_are_refused(
    port: int, inside: bytes, before: bytes
) -> None:
    """They were gathered, before any key was asked for."""
    head = b"POST /length HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
    endless = [inside] * (3 * HEAD_BYTES // len(inside) + 1)
    answer = await _exchange(port, head, b"1\r\na\r\n", before, *endless)
    assert answer == b"closed" or b" 400 " in answer


async def test_a_trailer_is_no_header(port: int) -> None:
    head = b"POST /names HTTP/1.1\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    answer = await _exchange(port, head + b"1\r\na\r\n0\r\nx-api-key: another\r\n\r\n")
    assert b" 200 " in answer
    assert b"x-api-key" not in answer


async def test_requests_are_not_gathered_behind_one_without_end(port: int) -> None:
    """20 MB of them, sent by a client that read nothing, took 1.4 GB."""
    one = b"POST /length HTTP/1.1\r\ncontent-length: 0\r\n\r\n"
    few = one * MOST_PIPELINED + one.replace(b"length: 0", b"length: 0\r\nconnection: close")
    assert (await _exchange(port, few)).count(b" 200 ") == MOST_PIPELINED + 1
    answer = await _exchange(port, one * 5000)
    assert answer == b"closed" or answer.count(b" 200 ") < 100


async def test_bodies_and_second_requests_are_not_counted_as_heads(port: int) -> None:
    head = b"POST /length HTTP/1.1\r\nhost: x\r\ncontent-length: 400000\r\n"
    body = [b"b" * 100_000] * 4
    once = head + b"\r\n"
    last = head + b"connection: close\r\n\r\n"
    answer = await _exchange(port, once, *body, last[:20], last[20:], *body)
    assert answer.count(b" 200 ") == 2
    assert answer.count(b"400000") == 2


@pytest.mark.parametrize("size", [1, 10, 4000, 200_000])
async def test_a_body_arrives_as_it_was_sent_however_it_is_cut(port: int, size: int) -> None:
    body = bytes(number % 251 for number in range(size * 40 if size > 10 else 3000 * size))
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    head = b"POST /echo HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    answer = await _exchange(port, head + b"transfer-encoding: chunked\r\n\r\n" + chunks)
    assert answer.partition(b"\r\n\r\n")[2] == body
    length = b"content-length: %d\r\n\r\n" % len(body)
    answer = await _exchange(port, head + length + body)
    assert answer.partition(b"\r\n\r\n")[2] == body


class _Recorded(asyncio.Transport):
    """A transport that keeps every write apart."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        self.writes.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


async def test_a_small_answer_leaves_in_one_write() -> None:
    transport = _Recorded()
    config = uvicorn.Config(Starlette(routes=[Route("/", _echo, methods=["POST"])]), lifespan="off")
    config.log_config = None
    config.load()
    connection = BoundedHttp(config, uvicorn.server.ServerState(), {})
    connection.connection_made(transport)
    for _ in range(2):
        connection.data_received(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello")
        await asyncio.gather(*connection.tasks)
    assert [write[-9:] for write in transport.writes] == [b"\r\n\r\nhello"] * 2
    connection.connection_lost(None)


async def test_a_head_without_a_body_yet_leaves_when_the_turn_ends() -> None:
    transport = _Recorded()
    answers = OneWrite(transport, asyncio.get_running_loop())
    answers.write(b"head")
    assert transport.writes == []
    await asyncio.sleep(0)
    assert transport.writes == [b"head"]
    answers.write(b"piece")
    answers.close()
    assert transport.writes == [b"head", b"piece"]
    assert answers.is_closing()


async def test_a_large_body_is_not_copied_behind_its_head() -> None:
    transport, large = _Recorded(), bytes(JOINED_BYTES + 1)
    answers = OneWrite(transport, asyncio.get_running_loop())
    answers.write(b"head")
    answers.write(large)
    await asyncio.sleep(0)
    assert transport.writes == [b"head", large]
