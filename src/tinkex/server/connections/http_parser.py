"""HTTP/1.1 as the server reads and writes it: parsed in C, heads of bounded size, answers whole.

The web server's own protocol does the work; it would gather a head without end, copy every piece
of a body twice and send an answer's head and body apart, this one does not. It overrides private
parts of uvicorn, whose version is capped for that in pyproject.toml; the tests of this module say
whether a newer one will do.
"""

from __future__ import annotations

import asyncio
from typing import cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 64 * 1024
"""So much of a head may come after its first piece, which is what one read of a socket gives."""


JOINED_BYTES = 64 * 1024
"""A body up to this size is copied behind its head; copying more costs more than a second write."""


class OneWrite:
    """Where answers are written: a first piece waits for the second, until the loop's turn ends.

    Two writes are two packets, and a client that wakes up twice.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held = b""

    def write(self, data: bytes) -> None:
        held, self._held = self._held, b""
        if not held and len(data) <= JOINED_BYTES:
            self._held = data
            self._loop.call_soon(self._flush)
        elif len(data) <= JOINED_BYTES:
            self._transport.write(held + data)
        else:
            self._transport.write(held)
            self._transport.write(data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        held, self._held = self._held, b""
        if held:
            self._transport.write(held)


class BoundedHttp(HttpToolsProtocol):
    """Answers an endless head with 400 and closes the connection."""

    _in_head = False
    _head_bytes = 0
    _answers: OneWrite

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._answers = OneWrite(transport, self.loop)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()
        if self.cycle is not None:
            self.cycle.transport = self._answers  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        """One piece per turn, as nearly always, is handed on as it is: two copies less."""
        waiting = cast(bytes | bytearray, self.cycle.body)
        if not waiting and not self.cycle.response_complete:
            self.cycle.body, body = body, b""  # type: ignore[assignment]
        elif isinstance(waiting, bytes):
            self.cycle.body = bytearray(waiting)
        super().on_body(body)
