"""How connections are taken: whoever is connected gets turns, however many others come."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from tinkex.server.connections.web import WebServer, config

FLOOD = 100
"""Fewer than any system lets wait."""


async def test_a_flood_of_connections_does_not_come_before_whoever_is_connected() -> None:
    """10,000 of them kept a neighbour waiting for 11 s: the loop took 2,048 at a time."""
    seen: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(len(server.server_state.connections))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    listener = socket.create_server(("127.0.0.1", 0))
    settings = config(app, lifespan="off")
    settings.load()
    server = WebServer(settings, lambda: None)
    server.lifespan = settings.lifespan_class(settings)
    await server.startup([listener])
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    flood = [socket.create_connection(listener.getsockname()) for _ in range(FLOOD)]
    try:
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        async with asyncio.timeout(20):
            assert b"ok" in await reader.read()
        assert seen[0] < FLOOD
    finally:
        for each in (*flood, writer):
            each.close()
        await server.shutdown([listener])
        listener.close()
