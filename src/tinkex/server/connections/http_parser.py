"""HTTP/1.1 parsed in C, with bounded heads, and answers sent in one piece.

Builds on the web server's own protocol, which would collect heads, trailers and pipelined requests
without a bound, copy every piece of a body twice, and send an answer's head and body separately.
This one does none of that. It overrides private parts of uvicorn, whose version is capped for that
in pyproject.toml; the tests of this module say whether a newer one works.
"""

from __future__ import annotations

import asyncio
from typing import cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 64 * 1024
"""So much of a head may come after its first piece, which is what one read of a socket gives; so
much of anything else that is no part of a body: trailers, or a chunk's extensions."""

MOST_PIPELINED = 64
"""Requests that may wait behind the one being answered on the same connection. No known client
pipelines, but a connection's data is read and kept as fast as it arrives."""


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
    """Answers endless requests with 400 and closes the connection."""

    _in_head = False
    _goes_on = False  # whether the bytes at hand end a head, or have a part of a body
    _bytes = 0  # since that was last so
    _answers: OneWrite

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self._answers = OneWrite(transport, self.loop)

    def data_received(self, data: bytes) -> None:
        self._goes_on = False
        super().data_received(data)
        self._bytes = 0 if self._goes_on else self._bytes + len(data)
        if self._bytes > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request, or its trailers, are too large.")

    def on_message_begin(self) -> None:
        self._in_head = self._goes_on = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A trailer is not a header: nobody reads it."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._goes_on = False, True
        super().on_headers_complete()
        if len(self.pipeline) > MOST_PIPELINED:
            raise ValueError("too many pipelined requests")  # as any request that cannot be read
        if self.cycle is not None:
            self.cycle.transport = self._answers  # type: ignore[assignment]  # all of a transport that is used

    def on_body(self, body: bytes) -> None:
        """One piece per turn, as nearly always, is handed on as it is: two copies less."""
        self._goes_on = True
        waiting = cast(bytes | bytearray, self.cycle.body)
        if not waiting and not self.cycle.response_complete:
            self.cycle.body, body = body, b""  # type: ignore[assignment]  # bytes until a second piece comes
        elif isinstance(waiting, bytes):
            self.cycle.body = bytearray(waiting)
        super().on_body(body)
