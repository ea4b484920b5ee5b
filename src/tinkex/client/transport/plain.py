"""HTTP/1.1 on asyncio alone: keep-alive, TLS, chunked bodies, gzip, deflate and zstd, streaming.

Used for addresses without TLS, where it answers sooner: the network transport's own threads have to
be woken for every request, which takes longer than the request. Also where that one cannot be: its
runtime does not survive a fork. No proxies, no HTTP/2.

Not `http.client`, which blocks: every held poll would need a thread of its own, and a cancelled
call could not be taken back.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
import zlib
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import zstandard

from tinkex.client.http import (
    HttpRequest,
    HttpResponse,
    Refused,
    TransportError,
    TransportTimeout,
)
from tinkex.client.transport.redirects import MAX_REDIRECTS, Origin, origin, redirected
from tinkex.wire.limits import ZSTD_ENCODING

if TYPE_CHECKING:
    from tinkex.client.settings.config import Config

MAX_HEAD = 64 * 1024
PIECE = 64 * 1024
IDLE_CONNECTIONS = 512
IDLE_SECONDS = 60.0
"""Servers and routers let go of connections that nobody used for long, some without a word."""


class PlainTransport:
    """A pool of keep-alive connections per origin. Used on one loop only."""

    def __init__(self, config: Config) -> None:
        if config.proxy:
            raise TransportError(
                "a forked child cannot use a proxy: start processes with the spawn method"
            )
        self._limit = config.max_response_bytes
        self._connect_timeout = config.timeout.connect
        self._idle: defaultdict[Origin, list[_Connection]] = defaultdict(list)
        self._busy: set[_Connection] = set()

    async def request(self, request: HttpRequest) -> HttpResponse:
        with _as_transport_errors():
            async with asyncio.timeout(request.timeout), self._answer(request) as answer:
                return await self._whole(answer)

    async def stream(self, request: HttpRequest) -> AsyncGenerator[bytes, None]:
        with _as_transport_errors():
            async with self._answer(request) as answer:
                if answer.status >= 300:
                    raise Refused(await self._whole(answer))
                async for piece in answer.body:
                    yield piece

    async def aclose(self) -> None:
        connections = [c for idle in self._idle.values() for c in idle] + list(self._busy)
        self._idle.clear()
        for connection in connections:
            connection.close()
        await asyncio.sleep(0)  # lets transports finish closing before the loop may stop

    async def _whole(self, answer: _Answer) -> HttpResponse:
        pieces: list[bytes] = []
        size = 0
        async for piece in answer.body:
            size += len(piece)
            if size > self._limit:
                raise TransportError(
                    f"the response body exceeds max_response_bytes ({self._limit} bytes)"
                )
            pieces.append(piece)
        return HttpResponse(answer.status, answer.headers, b"".join(pieces))

    @contextlib.asynccontextmanager
    async def _answer(self, request: HttpRequest) -> AsyncIterator[_Answer]:
        """The answer at the end of all redirects, its body still to be read."""
        for _ in range(MAX_REDIRECTS + 1):
            async with self._exchange(request) as answer:
                following = redirected(request, answer.status, answer.headers)
                if following is None:
                    yield answer
                    return
                request = following
        raise TransportError(f"more than {MAX_REDIRECTS} redirects")

    @contextlib.asynccontextmanager
    async def _exchange(self, request: HttpRequest) -> AsyncIterator[_Answer]:
        connection = await self._connection(origin(request.url))
        self._busy.add(connection)
        try:
            await connection.send(request)
            yield await connection.answer(request.method)
        finally:
            self._busy.discard(connection)
            self._give_back(connection)

    async def _connection(self, place: Origin) -> _Connection:
        idle = self._idle[place]
        while idle:
            connection = idle.pop()
            if connection.alive and time.monotonic() - connection.last_used < IDLE_SECONDS:
                return connection
            connection.close()
        async with asyncio.timeout(self._connect_timeout):
            reader, writer = await self._dial(place)
        return _Connection(place, reader, writer)

    async def _dial(self, place: Origin) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        secure = ssl.create_default_context() if place[0] == "https" else None
        return await asyncio.open_connection(place[1], place[2], ssl=secure, limit=MAX_HEAD)

    def _give_back(self, connection: _Connection) -> None:
        idle = self._idle[connection.origin]
        if connection.reusable and len(idle) < IDLE_CONNECTIONS:
            connection.last_used = time.monotonic()
            idle.append(connection)
        else:
            connection.close()


@dataclass(frozen=True)
class _Answer:
    """A head, and the body as it arrives, decompressed."""

    status: int
    headers: dict[str, str]
    body: AsyncIterator[bytes]


class _Connection:
    """One socket, between requests or in the middle of one."""

    def __init__(
        self, place: Origin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.origin = place
        self.reusable = False
        self.last_used = 0.0
        self._reader = reader
        self._writer = writer

    @property
    def alive(self) -> bool:
        return not self._reader.at_eof() and not self._writer.is_closing()

    def close(self) -> None:
        self._writer.close()

    async def send(self, request: HttpRequest) -> None:
        self.reusable = False
        # In one write, so in one packet if it fits.
        self._writer.writelines([_head(request), request.body or b""])
        await self._writer.drain()

    async def answer(self, method: str) -> _Answer:
        status, headers = await self._read_head()
        empty = method == "HEAD" or status in (204, 304)
        raw = self._counted(0) if empty else self._raw_body(headers)
        return _Answer(status, headers, self._body(raw, headers))

    async def _read_head(self) -> tuple[int, dict[str, str]]:
        while True:
            raw = await self._reader.readuntil(b"\r\n\r\n")
            first, *lines = raw.decode("latin-1").split("\r\n")
            version, code = first.split(" ")[:2]
            if not version.startswith("HTTP/1."):
                raise ValueError(f"it begins with {version[:20]!r}")
            if int(code) >= 200:  # anything below only announces the real answer
                break
        pairs = (line.partition(":") for line in lines if line)
        return int(code), {name.strip().lower(): value.strip() for name, _, value in pairs}

    async def _body(
        self, raw: AsyncIterator[bytes], headers: dict[str, str]
    ) -> AsyncIterator[bytes]:
        decode = _decoder(headers.get("content-encoding", "identity").lower())
        async for piece in raw:
            yield decode(piece)
        to_the_end = "content-length" not in headers and "transfer-encoding" not in headers
        closing = headers.get("connection", "").lower() == "close" or to_the_end
        self.reusable = not closing

    def _raw_body(self, headers: dict[str, str]) -> AsyncIterator[bytes]:
        if "chunked" in headers.get("transfer-encoding", "").lower():
            return self._chunks()
        if "content-length" in headers:
            return self._counted(int(headers["content-length"]))
        return self._until_closed()

    async def _counted(self, size: int) -> AsyncIterator[bytes]:
        while size > 0:
            piece = await self._reader.read(min(size, PIECE))
            if not piece:
                raise asyncio.IncompleteReadError(b"", size)
            size -= len(piece)
            yield piece

    async def _chunks(self) -> AsyncIterator[bytes]:
        while size := int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16):
            async for piece in self._counted(size):
                yield piece
            await self._reader.readexactly(2)
        while await self._reader.readuntil(b"\r\n") != b"\r\n":
            pass  # trailers

    async def _until_closed(self) -> AsyncIterator[bytes]:
        while piece := await self._reader.read(PIECE):
            yield piece


@contextlib.contextmanager
def _as_transport_errors() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise TransportTimeout("timed out") from error
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise TransportError(_in_words(error)) from error
    except (ValueError, IndexError, zlib.error, zstandard.ZstdError) as error:
        raise TransportError(f"the answer is not HTTP: {error}") from error


def _in_words(error: Exception) -> str:
    """What happened, for those who wait: asyncio's own words are about counts and tuples."""
    if isinstance(error, asyncio.IncompleteReadError):
        return "the connection was cut"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, socket.gaierror):
        return "the host name is not known"
    return str(error) or type(error).__name__


def _head(request: HttpRequest) -> bytes:
    parts = urlsplit(request.url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = [
        f"{request.method} {target} HTTP/1.1",
        f"Host: {parts.netloc.rpartition('@')[2]}",
        "Accept-Encoding: gzip, deflate, zstd",
        *(f"{name}: {value}" for name, value in request.headers.items()),
    ]
    if request.method != "GET" or request.body:
        lines.append(f"Content-Length: {len(request.body or b'')}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _decoder(encoding: str) -> Callable[[bytes], bytes]:
    if encoding in ("gzip", "deflate"):
        # 32 + MAX_WBITS reads both the gzip and the zlib header.
        return zlib.decompressobj(32 + zlib.MAX_WBITS).decompress
    if encoding == ZSTD_ENCODING:
        return zstandard.ZstdDecompressor().decompressobj().decompress
    return lambda piece: piece
