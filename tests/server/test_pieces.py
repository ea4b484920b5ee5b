"""Large answers are written as they are taken: who reads none of one costs next to nothing."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Message, Receive, Scope, Send

from tinkex.server.connections.pieces import PIECE_BYTES, InPieces
from tinkex.server.connections.web import WebServer, config

LARGE = 32 * 1024 * 1024


async def _sent(body: bytes) -> list[Message]:
    async def answering(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(body)(scope, receive, send)

    messages: list[Message] = []

    async def send(message: Message) -> None:
        messages.append(message)

    async def receive() -> Message:
        raise AssertionError("nobody asks")

    await InPieces(answering)({"type": "http"}, receive, send)
    return messages


@pytest.mark.parametrize("more", [-1, 0, 1, PIECE_BYTES])
async def test_an_answer_is_the_same_in_pieces(more: int) -> None:
    body = bytes(range(256)) * (2 * PIECE_BYTES // 256) + b"x" * max(more, 0)
    body = body[: 2 * PIECE_BYTES + more]
    start, *pieces = await _sent(body)
    assert start["type"] == "http.response.start"
    assert b"".join(piece["body"] for piece in pieces) == body
    assert max(len(piece["body"]) for piece in pieces) <= PIECE_BYTES
    assert [piece.get("more_body", False) for piece in pieces] == [True] * (len(pieces) - 1) + [
        False
    ]


async def test_a_small_answer_is_sent_as_it_is() -> None:
    assert [message.get("body") for message in await _sent(b"small")] == [None, b"small"]


async def test_an_answer_nobody_reads_is_not_copied() -> None:
    async def large(_: Request) -> Response:
        return Response(bytes(LARGE))

    server = WebServer(config(Router([Route("/", large)]), lifespan="off"), lambda: None)
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as client:
        await server.startup([listener])
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, listener.getsockname())
        await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert await loop.sock_recv(client, 12) == b"HTTP/1.1 200"
        await asyncio.sleep(0.2)
        connections: list[Any] = list(server.server_state.connections)
        transport = connections[0].transport
        held = transport.get_write_buffer_size()
        assert 0 < held <= 2 * PIECE_BYTES
        transport.abort()
        await server.shutdown([listener])
