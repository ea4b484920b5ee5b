"""HTTP/1.1 as the server reads it from a socket: parsed in C, with heads of bounded size.

The web server's own protocol does the work; it would gather a head without end and copy every piece
of a body twice, this one does not.
"""

from __future__ import annotations

from typing import cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 64 * 1024
"""So much of a head may come after its first piece, which is what one read of a socket gives."""


class BoundedHttp(HttpToolsProtocol):
    """Answers an endless head with 400 and closes the connection."""

    _in_head = False
    _head_bytes = 0

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

    def on_body(self, body: bytes) -> None:
        """One piece per turn, as nearly always, is handed on as it is: two copies less."""
        waiting = cast(bytes | bytearray, self.cycle.body)
        if not waiting and not self.cycle.response_complete:
            self.cycle.body, body = body, b""  # type: ignore[assignment]
        elif isinstance(waiting, bytes):
            self.cycle.body = bytearray(waiting)
        super().on_body(body)
