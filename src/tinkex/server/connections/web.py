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

KEEP_ALIVE_S = 120
GRACE_S = 2


def config(app: ASGIApp, lifespan: Literal["on", "off"] = "on") -> uvicorn.Config:
    """With `lifespan` on, serving starts and stops the application too."""
    return uvicorn.Config(
        app,
        interface="asgi3",
        http=BoundedHttp,
        lifespan=lifespan,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
    )


class WebServer(uvicorn.Server):
    """uvicorn that leaves signals alone; `dismiss` answers every held poll."""

    def __init__(self, settings: uvicorn.Config, dismiss: Callable[[], None]) -> None:
        super().__init__(settings)
        self._dismiss = dismiss

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Held polls are answered at once, after every connection was told to be its last."""
        asyncio.get_running_loop().call_soon(self._dismiss)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
