"""Requests to the server of another process on this machine, over the socket in its home.

That process may end at any time. `NobodyThere` then says that a request was never sent, so the home
can be asked again who serves it now.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from tinkex.client.http import NobodyThere
from tinkex.client.transport.plain import MAX_HEAD, PlainTransport
from tinkex.client.transport.redirects import Origin

if TYPE_CHECKING:
    from tinkex.client.settings.config import Config


class JoinedTransport(PlainTransport):
    """Connections to one socket, whatever the address of a request says."""

    def __init__(self, config: Config, path: str) -> None:
        super().__init__(replace(config, proxy=None))
        self._path = path

    async def is_answered(self) -> bool:
        """Whether anybody listens at the socket."""
        try:
            _, writer = await self._dial(("http", "", 0))
        except NobodyThere:
            return False
        writer.close()
        return True

    async def _dial(self, _: Origin) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            return await asyncio.open_unix_connection(self._path, limit=MAX_HEAD)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise NobodyThere(f"nobody answers at {self._path} any more") from error
