"""Serves an application to other processes of its own user, over the socket in its home.

The web server is loaded when the first process connects. A process that connects here owns the
home's files, so it has the same rights as the client within this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from tinkex.server.storage.home_socket import HomeSocket
from tinkex.server.tenancy.tenants import OWNERS_PLACE

logger = logging.getLogger(__name__)


class Doorway:
    """`dismiss` is called when the socket closes, to end what would keep connections open."""

    def __init__(self, app: ASGIApp, socket: HomeSocket, dismiss: Callable[[], None]) -> None:
        self._app = app
        self._socket = socket
        self._dismiss = dismiss
        self._server: Any = None
        self._serving: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Accept connections from now on."""
        if self._socket.listener is not None:
            asyncio.get_running_loop().add_reader(self._socket.listener, self._knocked)

    async def close(self) -> None:
        """Accept no more connections, and end those that are open."""
        if self._socket.listener is not None:
            asyncio.get_running_loop().remove_reader(self._socket.listener)
        if self._serving is not None:
            if self._server is not None:
                self._server.should_exit = True
            else:
                self._serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._serving
        self._socket.close()

    def _knocked(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket.listener)  # type: ignore[arg-type]  # None only before it is open
        self._serving = loop.create_task(self._serve(), name="tinkex-doorway")

    async def _serve(self) -> None:
        web = await asyncio.to_thread(importlib.import_module, "tinkex.server.connections.web")
        self._server = web.WebServer(web.config(self._as_owner, lifespan="off"), self._dismiss)
        try:
            await self._server.serve([self._socket.listener])
        except Exception:
            logger.exception("other processes of this user cannot reach this server any more")

    async def _as_owner(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, "server": OWNERS_PLACE}, receive, send)
