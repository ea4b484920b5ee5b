"""Lets go of what a home need not keep: by its server where one lives there, else on its own."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from pathlib import Path

from tinkex.server.sampling.unnamed_weights import Freed
from tinkex.server.settings import Settings
from tinkex.server.storage.home import Home, HomeTaken
from tinkex.wire.limits import HEADER_API_KEY, LOCAL_API_KEY
from tinkex.wire.routes import COLLECT_HOME

_TIMEOUT_S = 600.0


def clean(root: Path, *, dry_run: bool = False) -> Freed:
    """What was or would be freed. Raises `HomeTaken` where its server cannot be asked."""
    try:
        home = Home(root)
    except HomeTaken as taken:
        if taken.holder is None or not taken.holder.socket:
            raise
        return _ask(taken.holder.socket, "GET" if dry_run else "POST")
    return asyncio.run(_clean(home, dry_run))


async def _clean(home: Home, dry_run: bool) -> Freed:
    """The server's own parts, without an engine."""
    from tinkex.server.core import Core

    core = Core(Settings(home.root, models=(), port=0), home=home)
    try:
        await core.start()
        return await (core.unnamed.collectable() if dry_run else core.collect())
    finally:
        await core.stop()


class _AtSocket(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("local", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_TIMEOUT_S)
        self.sock.connect(self._path)


def _ask(path: str, method: str) -> Freed:
    connection = _AtSocket(path)
    try:
        connection.request(method, COLLECT_HOME, headers={HEADER_API_KEY: LOCAL_API_KEY})
        answer = connection.getresponse()
        found = json.loads(answer.read())
    finally:
        connection.close()
    if answer.status != 200:
        raise OSError(f"the server of this home answered {answer.status}: {found.get('detail')}")
    return Freed(found["samplers"], found["size_bytes"])
