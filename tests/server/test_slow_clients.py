"""A client that dawdles is cut after the time that is stated; nobody else notices."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from support.live_server import live_server
from tinkex.server.connections.slow_clients import SlowClients
from tinkex.server.settings import Limits

LIMITS = Limits(header_timeout_s=0.4, stall_timeout_s=0.4)
LONG_S = 1.2
LARGE = 32 * 1024 * 1024


async def _held(_: Request) -> Response:
    await asyncio.sleep(LONG_S)
    return PlainTextResponse("held")


async def _large(_: Request) -> Response:
    return Response(bytes(LARGE))


async def _stream(_: Request) -> Response:
    async def lines() -> AsyncIterator[bytes]:
        for _ in range(12):
            await asyncio.sleep(LONG_S / 12)
            yield b"token\n"

    return StreamingResponse(lines())


async def _endless(_: Request) -> Response:
    async def lines() -> AsyncIterator[bytes]:
        while True:
            await asyncio.sleep(0)
            yield bytes(100_000)

    return StreamingResponse(lines())


APP = Starlette(
    routes=[
        Route("/held", _held),
        Route("/large", _large),
        Route("/stream", _stream),
        Route("/endless", _endless),
    ]
)


@dataclass
class Watched:
    port: int
    server: uvicorn.Server
    cuts: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A connection that can take little at once."""
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self.port))
        reader, writer = await asyncio.open_connection(sock=connection, limit=65536)
        try:
            yield reader, writer
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def get(self, path: str) -> bytes:
        async with self.connected() as (reader, writer):
            writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
            return await asyncio.wait_for(reader.read(-1), 20)

    async def gone(self) -> None:
        """Wait until the server holds no connection and does nothing for one."""
        async with asyncio.timeout(10):
            while self.server.server_state.connections or self.server.server_state.tasks:
                await asyncio.sleep(0.02)


def _parsers() -> list[object]:
    missing = importlib.util.find_spec("httptools") is None
    reason = "httptools is not installed"
    return ["h11", pytest.param("httptools", marks=pytest.mark.skipif(missing, reason=reason))]


@pytest.fixture(params=_parsers())
async def watched(request: pytest.FixtureRequest) -> AsyncIterator[Watched]:
    config = uvicorn.Config(APP, http=request.param, log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup([listener])
        found = Watched(listener.getsockname()[1], server)
        slow = SlowClients(lambda: server.server_state.connections, LIMITS, found.cuts.append)
        looking = asyncio.create_task(slow.live())
        try:
            yield found
        finally:
            looking.cancel()
            for connection in list(server.server_state.connections):
                connection.transport.abort()
            await server.shutdown([listener])


async def _trickle(writer: asyncio.StreamWriter, text: bytes) -> None:
    with suppress(OSError):
        for byte in text:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.05)


async def test_a_header_that_comes_a_byte_at_a_time_is_cut(watched: Watched) -> None:
    async with watched.connected() as (reader, writer):
        half = b"GET /held HTTP/1.1\r\nx: " + b"x" * 60
        async with asyncio.timeout(5):
            await asyncio.gather(_trickle(writer, half), _end(reader))
    assert watched.cuts == ["slow_header"]
    await watched.gone()


async def test_a_connection_that_says_nothing_is_cut(watched: Watched) -> None:
    async with watched.connected() as (reader, _), asyncio.timeout(5):
        await _end(reader)
    assert watched.cuts == ["slow_header"]


async def test_a_second_request_may_not_trickle_either(watched: Watched) -> None:
    async with watched.connected() as (reader, writer):
        writer.write(b"GET /nowhere HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"404" in await reader.readline()
        await asyncio.sleep(LONG_S)
        assert watched.cuts == [], "an idle connection may be kept"
        async with asyncio.timeout(5):
            await asyncio.gather(_trickle(writer, b"GET /held HTTP/1.1\r\n" * 4), _end(reader))
    assert watched.cuts == ["slow_header"]


@pytest.mark.parametrize("path", ["/large", "/endless"])
async def test_who_stops_reading_a_large_answer_is_cut_and_frees_its_memory(
    watched: Watched, path: str
) -> None:
    async with watched.connected() as (reader, writer):
        writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        assert b"200" in await reader.readline()
        quick = await watched.get("/stream")
        assert quick.count(b"token") == 12, "others are served meanwhile"
        await watched.gone()
        assert watched.cuts == ["slow_reader"]


async def test_held_polls_and_token_streams_are_not_cut(watched: Watched) -> None:
    held, stream = await asyncio.gather(watched.get("/held"), watched.get("/stream"))
    assert held.endswith(b"held")
    assert stream.count(b"token") == 12
    assert watched.cuts == []


async def test_who_reads_slowly_but_steadily_gets_everything(watched: Watched) -> None:
    async with watched.connected() as (reader, writer):
        writer.write(b"GET /large HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        taken = 0
        while block := await reader.read(1 << 16):
            taken += len(block)
            if taken < LARGE // 2:
                await asyncio.sleep(LONG_S / 400)
        assert (taken > LARGE, watched.cuts) == (True, []), taken


@pytest.mark.slow
async def test_serve_cuts_a_body_that_comes_a_byte_at_a_time(tmp_path: Path) -> None:
    limits = ["--limit", "body_timeout_s=1", "--limit", "header_timeout_s=1"]
    with live_server(tmp_path / "home", "--model", "tinkex/tiny-llama", *limits) as server:
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        key = b"host: x\r\nx-api-key: tml-a\r\n"
        writer.write(b"POST /api/v1/create_session HTTP/1.1\r\n" + key)
        writer.write(b"content-length: 1000\r\n\r\n")
        async with asyncio.timeout(20):
            trickle = asyncio.create_task(_trickle(writer, b" " * 1000))
            answer = await reader.readuntil(b"}")
            await _end(reader)
        trickle.cancel()
        writer.close()
        assert b" 422 " in answer
        assert b"did not arrive within 1 s" in answer
        with urllib.request.urlopen(f"{server.url}/metrics", timeout=60) as page:
            assert 'tinkex_connections_cut_total{reason="slow_header"} 1' in page.read().decode()


async def _end(reader: asyncio.StreamReader) -> None:
    """Read until the connection is over, however that happens."""
    with suppress(OSError):
        while await reader.read(1 << 16):
            pass
