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

from tinkex.client.http import HttpRequest, HttpResponse, Refused, TransportError, TransportTimeout
from tinkex.client.transport import redirects
from tinkex.client.transport.redirects import MAX_REDIRECTS, redirected

if TYPE_CHECKING:
    from tinkex.client.settings.config import Config

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
            follow_redirects=False,  # it would take our key along
        )

    async def request(self, request: HttpRequest) -> HttpResponse:
        try:
            async with asyncio.timeout(request.timeout):
                return await self._exchange(request)
        except TimeoutError as error:
            raise TransportTimeout("timed out") from error
        except _FAILURES as error:
            raise TransportError(str(error) or type(error).__name__) from error

    async def stream(self, request: HttpRequest) -> AsyncGenerator[bytes, None]:
        try:
            async with await self._answer(request) as response:
                if response.status >= 300:
                    raise Refused(_whole(response, await self._read(response)))
                async for piece in response.content:
                    yield bytes(piece)
        except _FAILURES as error:
            raise TransportError(str(error) or type(error).__name__) from error

    async def _exchange(self, request: HttpRequest) -> HttpResponse:
        response = await self._answer(request)
        try:
            content = await self._read(response)
        except BaseException:
            await response.aclose()  # a body read to its end needs no closing
            raise
        return _whole(response, content)

    async def _answer(self, request: HttpRequest) -> pyqwest.Response:
        """The answer at the end of all redirects, its body still to be read."""
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._transport.execute(_outgoing(request))
            if response.status not in redirects.STATUSES:
                return response
            following = redirected(request, response.status, _headers(response))
            if following is None:
                return response
            await response.aclose()
            request = following
        raise TransportError(f"more than {MAX_REDIRECTS} redirects")

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
    ValueError,  # an address that is none
)


def _outgoing(request: HttpRequest) -> pyqwest.Request:
    headers = pyqwest.Headers(request.headers.items())
    return pyqwest.Request(request.method, request.url, headers, request.body)


def _headers(response: pyqwest.Response) -> dict[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}


def _whole(response: pyqwest.Response, content: bytes) -> HttpResponse:
    return HttpResponse(response.status, _headers(response), content)


def _proxy(config: Config) -> pyqwest.Proxy:
    if not config.proxy:
        # Without a proxy of ours the library would look for one in the environment, which only
        # the configuration may read: this one is never used.
        return pyqwest.Proxy("http://127.0.0.1:9", no_proxy="*,0.0.0.0/0,::/0")
    return pyqwest.Proxy(config.proxy, no_proxy=config.no_proxy)
