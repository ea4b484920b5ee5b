"""Large answers, written a piece at a time, each when the one before it was taken.

The web server keeps a copy of what it is given until the client has taken it. Without pieces, a
result requested on two hundred slow connections would be in memory two hundred times.
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

PIECE_BYTES = 128 * 1024


class InPieces:
    """An application whose answers are never written in larger pieces than that."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_pieces(message: Message) -> None:
            body = message.get("body", b"")
            for start in range(PIECE_BYTES, len(body), PIECE_BYTES):
                piece = body[start - PIECE_BYTES : start]
                await send({**message, "body": piece, "more_body": True})
                await asyncio.sleep(0)  # the system takes megabytes at once: others have their turn
            if len(body) > PIECE_BYTES:
                rest = (len(body) - 1) // PIECE_BYTES * PIECE_BYTES
                message = {**message, "body": body[rest:]}
            await send(message)

        await self._app(scope, receive, send_pieces if scope["type"] == "http" else send)
