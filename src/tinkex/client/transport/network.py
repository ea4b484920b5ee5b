"""Requests over real sockets, through pyqwest: keep-alive, HTTP/2 over TLS, proxies.

Reads at most the configured number of body bytes, after decompression.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import pyqwest

from tinkex.client.transport import (
    HttpRequest,
    HttpResponse,
    Refused,
    TransportError,
    TransportTimeout,
)

if TYPE_CHECKING:
    from tinkex.client.config import Config

IDLE_CONNECTIONS = 512
IDLE_SECONDS = 60.0


# A native thread that is just handing over its last answer needs the interpreter for a moment
# longer; finding it gone, it would abort the process.
EXIT_GRACE = 0.03
atexit.register(time.sleep, EXIT_GRACE)

_runtime_pid: int | None = None


def usable_here() -> bool:
    """False in a forked child of a process that already used this: its threads are not here."""
    return _runtime_pid in (None, os.getpid())


class NetworkTransport:
    """A connection pool for one client."""

    def __init__(self, config: Config) -> None:
        global _runtime_pid
        _runtime_pid = os.getpid()
        self._limit = config.max_response_bytes
        self._transport = pyqwest.HTTPTransport(
            tls_include_system_certs=True,
            proxy=_proxy(config),
            connect_timeout=config.timeout.connect,
            pool_idle_timeout=IDLE_SECONDS,
            pool_max_idle_per_host=IDLE_CONNECTIONS,
            enable_otel=False,
        )

    async def request(self, request: HttpRequest) -> HttpResponse:
        outgoing = pyqwest.Request(
            request.method, request.url, pyqwest.Headers(request.headers.items()), request.body
        )
        try:
            async with asyncio.timeout(request.timeout):
                return await self._exchange(outgoing)
        except TimeoutError as error:
            raise TransportTimeout("timed out") from error
        except _FAILURES as error:
            raise TransportError(str(error) or type(error).__name__) from error

    async def stream(self, request: HttpRequest) -> AsyncGenerator[bytes, None]:
        outgoing = pyqwest.Request(
            request.method, request.url, pyqwest.Headers(request.headers.items()), request.body
        )
        try:
            async with await self._transport.execute(outgoing) as response:
                if response.status >= 400:
                    raise Refused(_whole(response, await self._read(response)))
                async for piece in response.content:
                    yield bytes(piece)
        except _FAILURES as error:
            raise TransportError(str(error) or type(error).__name__) from error

    async def _exchange(self, outgoing: pyqwest.Request) -> HttpResponse:
        response = await self._transport.execute(outgoing)
        try:
            content = await self._read(response)
        except BaseException:
            await response.aclose()  # a body read to its end needs no closing
            raise
        return _whole(response, content)

    async def _read(self, response: pyqwest.Response) -> bytes:
        pieces: list[bytes] = []
        size = 0
        async for piece in response.content:
            size += len(piece)
            if size > self._limit:
                raise TransportError(
                    f"the response body exceeds max_response_bytes ({self._limit} bytes)"
                )
            pieces.append(bytes(piece))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def aclose(self) -> None:
        await self._transport.aclose()


_FAILURES = (
    OSError,
    pyqwest.ReadError,
    pyqwest.WriteError,
    pyqwest.RemoteProtocolError,
    pyqwest.TooManyRedirects,
)


def _whole(response: pyqwest.Response, content: bytes) -> HttpResponse:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return HttpResponse(response.status, headers, content)


def _proxy(config: Config) -> pyqwest.Proxy:
    if not config.proxy:
        # Without a proxy of ours the library would look for one in the environment, which only
        # the configuration may read: this one is never used.
        return pyqwest.Proxy("http://127.0.0.1:9", no_proxy="*,0.0.0.0/0,::/0")
    return pyqwest.Proxy(config.proxy, no_proxy=config.no_proxy)
