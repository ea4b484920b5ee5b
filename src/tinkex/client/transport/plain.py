"""HTTP/1.1 on asyncio alone: keep-alive, TLS, chunked bodies, gzip, deflate and zstd.

Used where the network transport cannot be: its runtime does not survive a fork, so a forked child
of a process that already made requests speaks through this one. No proxies, no HTTP/2.
"""

from __future__ import annotations

import asyncio
import ssl
import zlib
from collections import defaultdict
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urljoin, urlsplit

import zstandard

from tinkex.client.transport import HttpRequest, HttpResponse, TransportError, TransportTimeout

if TYPE_CHECKING:
    from tinkex.client.config import Config

MAX_HEAD = 64 * 1024
MAX_REDIRECTS = 10
IDLE_CONNECTIONS = 64
REDIRECTS = frozenset({301, 302, 303, 307, 308})

Origin = tuple[str, str, int]


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
        try:
            async with asyncio.timeout(request.timeout):
                return await self._following(request)
        except TimeoutError as error:
            raise TransportTimeout("timed out") from error
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise TransportError(str(error) or type(error).__name__) from error
        except (ValueError, IndexError, zlib.error, zstandard.ZstdError) as error:
            raise TransportError(f"the answer is not HTTP: {error}") from error

    async def aclose(self) -> None:
        connections = [c for idle in self._idle.values() for c in idle] + list(self._busy)
        self._idle.clear()
        for connection in connections:
            connection.close()
        await asyncio.sleep(0)  # lets transports finish closing before the loop may stop

    async def _following(self, request: HttpRequest) -> HttpResponse:
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._exchange(request)
            target = response.headers.get("location")
            if response.status not in REDIRECTS or target is None:
                return response
            request = _redirected(request, response.status, target)
        raise TransportError(f"more than {MAX_REDIRECTS} redirects")

    async def _exchange(self, request: HttpRequest) -> HttpResponse:
        parts = urlsplit(request.url)
        connection = await self._connection(parts)
        self._busy.add(connection)
        try:
            await connection.send(_head(request, parts), request.body)
            status, headers = await connection.read_head()
            content = await connection.read_body(request.method, status, headers, self._limit)
        except BaseException:
            connection.close()
            raise
        finally:
            self._busy.discard(connection)
        self._give_back(connection, headers)
        return HttpResponse(status, headers, _decoded(content, headers, self._limit))

    async def _connection(self, parts: SplitResult) -> _Connection:
        origin = _origin(parts)
        idle = self._idle[origin]
        while idle:
            connection = idle.pop()
            if connection.alive:
                return connection
            connection.close()
        secure = ssl.create_default_context() if origin[0] == "https" else None
        async with asyncio.timeout(self._connect_timeout):
            reader, writer = await asyncio.open_connection(
                origin[1], origin[2], ssl=secure, limit=MAX_HEAD
            )
        return _Connection(origin, reader, writer)

    def _give_back(self, connection: _Connection, headers: dict[str, str]) -> None:
        idle = self._idle[connection.origin]
        keep = headers.get("connection", "").lower() != "close"
        if keep and len(idle) < IDLE_CONNECTIONS:
            idle.append(connection)
        else:
            connection.close()


class _Connection:
    """One socket, between requests or in the middle of one."""

    def __init__(
        self, origin: Origin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.origin = origin
        self._reader = reader
        self._writer = writer

    @property
    def alive(self) -> bool:
        return not self._reader.at_eof() and not self._writer.is_closing()

    def close(self) -> None:
        self._writer.close()

    async def send(self, head: bytes, body: bytes | None) -> None:
        self._writer.write(head)
        if body:
            self._writer.write(body)
        await self._writer.drain()

    async def read_head(self) -> tuple[int, dict[str, str]]:
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

    async def read_body(
        self, method: str, status: int, headers: dict[str, str], limit: int
    ) -> bytes:
        if method == "HEAD" or status in (204, 304):
            return b""
        if "chunked" in headers.get("transfer-encoding", "").lower():
            return await self._read_chunks(limit)
        if "content-length" in headers:
            size = int(headers["content-length"])
            _check_size(size, limit)
            return await self._reader.readexactly(size)
        headers["connection"] = "close"
        body = await self._reader.read(limit + 1)
        while len(body) <= limit and (more := await self._reader.read(limit + 1 - len(body))):
            body += more
        _check_size(len(body), limit)
        return body

    async def _read_chunks(self, limit: int) -> bytes:
        pieces: list[bytes] = []
        total = 0
        while True:
            line = await self._reader.readuntil(b"\r\n")
            size = int(line.split(b";")[0], 16)
            total += size
            _check_size(total, limit)
            if size == 0:
                while await self._reader.readuntil(b"\r\n") != b"\r\n":
                    pass  # trailers
                return b"".join(pieces)
            pieces.append(await self._reader.readexactly(size))
            await self._reader.readexactly(2)


def _origin(parts: SplitResult) -> Origin:
    default = 443 if parts.scheme == "https" else 80
    return parts.scheme, parts.hostname or "", parts.port or default


def _head(request: HttpRequest, parts: SplitResult) -> bytes:
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


def _redirected(request: HttpRequest, status: int, target: str) -> HttpRequest:
    keep = status in (307, 308) or request.method in ("GET", "HEAD")
    return HttpRequest(
        request.method if keep else "GET",
        urljoin(request.url, target),
        request.headers,
        request.body if keep else None,
        request.timeout,
    )


def _decoded(content: bytes, headers: dict[str, str], limit: int) -> bytes:
    encoding = headers.get("content-encoding", "identity").lower()
    if encoding in ("gzip", "deflate"):
        # 32 + MAX_WBITS reads both the gzip and the zlib header.
        decoded = zlib.decompressobj(32 + zlib.MAX_WBITS).decompress(content, limit + 1)
    elif encoding == "zstd":
        decoded = zstandard.ZstdDecompressor().stream_reader(content).read(limit + 1)
    else:
        return content
    _check_size(len(decoded), limit)
    return decoded


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise TransportError(f"the response body exceeds max_response_bytes ({limit} bytes)")
