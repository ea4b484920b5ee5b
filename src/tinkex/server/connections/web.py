"""How an application meets its sockets: the web server's settings, and what ends it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Literal

import uvicorn
from starlette.types import ASGIApp

from tinkex.server.connections.http_parser import BoundedHttp
from tinkex.server.connections.pieces import InPieces

KEEP_ALIVE_S = 120
GRACE_S = 2
BACKLOG = 2048
"""Connections that may wait to be accepted."""
_TAKEN = 32
"""Of those, accepted at once before existing connections get a turn."""


def config(app: ASGIApp, lifespan: Literal["on", "off"] = "on") -> uvicorn.Config:
    """With `lifespan` on, serving starts and stops the application too."""
    return uvicorn.Config(
        InPieces(app),
        interface="asgi3",
        http=BoundedHttp,
        lifespan=lifespan,
        log_config=None,
        access_log=False,
        log_level="error",  # a line for each request that is no HTTP would let anybody fill a disk
        backlog=_TAKEN,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
    )


class WebServer(uvicorn.Server):
    """uvicorn that leaves signals alone; `dismiss` answers every held poll."""

    def __init__(self, settings: uvicorn.Config, dismiss: Callable[[], None]) -> None:
        super().__init__(settings)
        self._dismiss = dismiss

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """The event loop has one number for how many connections may wait and for how many it takes
        before it turns to anything else: with 2,048, a flood of them kept everybody waiting."""
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(BACKLOG)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Held polls are answered at once, after every connection was told to be its last."""
        asyncio.get_running_loop().call_soon(self._dismiss)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
