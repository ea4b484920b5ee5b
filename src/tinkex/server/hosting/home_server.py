"""Asks the server that lives in a home, through the socket in it: as the owner of its files."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from typing import Any

from tinkex.server.storage.home import HomeTaken
from tinkex.wire.limits import HEADER_API_KEY, LOCAL_API_KEY

_TIMEOUT_S = 600.0


class _AtSocket(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("local", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_TIMEOUT_S)
        self.sock.connect(self._path)


class Refused(OSError):
    """The server refused, with its reason."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"the server of this home answered {status}: {detail}")
        self.detail = detail


def ask(
    taken: HomeTaken, method: str, path: str, body: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The answer of the home's server. Raises `HomeTaken` if it has no socket, `Refused`, else
    `OSError`."""
    if taken.holder is None or not taken.holder.socket:
        raise taken
    connection = _AtSocket(taken.holder.socket)
    try:
        content = None if body is None else json.dumps(body)
        headers = {HEADER_API_KEY: LOCAL_API_KEY, "content-type": "application/json"}
        connection.request(method, path, content, headers)
        answer = connection.getresponse()
        found: dict[str, Any] = json.loads(answer.read())
    finally:
        connection.close()
    if answer.status != 200:
        raise Refused(answer.status, str(found.get("detail")))
    return found
