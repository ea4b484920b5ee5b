"""Keeps foreign web pages away from a server that is for this machine alone (DNS rebinding).

A page on the internet may have its name resolve to 127.0.0.1 and then talk to this server from a
browser on this machine. Its requests name the page's host, so a browser that names another host
than this machine is refused. Programs are not: behind a proxy or in a test they may use any name,
and the attack needs a browser.
"""

from __future__ import annotations

import re

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from tinkex.server.http.exchange import answer
from tinkex.server.settings import Settings, is_loopback
from tinkex.server.tenancy.tenants import OWNERS_PLACE

_OF_BROWSERS = (
    "origin",
    "cookie",
    "referer",
    "accept-language",
    "sec-fetch-site",
    "sec-fetch-mode",
)
"""A page may give itself another name (`user-agent`), leave out where it comes from, and is told of
no `sec-fetch` where it came without TLS; the languages of its user it can change, never remove."""

_HOST = re.compile(r"(\[(?P<bracketed>[^\[\]]+)\]|(?P<name>[^:\[\]]*))(:[0-9]*)?")


class BrowsersAtHome:
    """ASGI middleware. Does nothing on a server with keys of its own: there being on this machine
    opens nothing, and people come through a proxy by the name it has."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._guards = settings.is_private and settings.keys is None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._guards and scope["type"] == "http" and _is_foreign(scope):
            detail = "this server is for browsers of its own machine: open it at 127.0.0.1"
            await answer({"detail": detail}, 403)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _is_foreign(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    if is_loopback(_host(headers.get("host", ""))) or scope.get("server") == OWNERS_PLACE:
        return False
    return headers.get("user-agent", "").startswith("Mozilla/") or any(
        name in headers for name in _OF_BROWSERS
    )


def _host(header: str) -> str:
    """`name`, `name:8000` or `[::1]:8000`, without the port; else nobody's name."""
    found = _HOST.fullmatch(header)
    return "" if found is None else found["bracketed"] or found["name"]
