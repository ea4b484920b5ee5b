"""HTTP redirects, followed in one place for every transport that uses sockets.

A request keeps its headers within one origin (scheme, host and port). Another origin is a
stranger: it gets none of our secrets, so no header but those any download has, and no body. A
request that cannot do without its body is not sent there; its redirect is the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import urljoin, urlsplit

from tinkex.client.http import HttpRequest

MAX_REDIRECTS = 10
STATUSES = frozenset({301, 302, 303, 307, 308})
# A list of what may travel, not of what must not: a secret can have any name.
_FOR_STRANGERS = frozenset({"accept", "accept-encoding", "if-range", "range", "user-agent"})
_PORTS = {"http": 80, "https": 443}

Origin = tuple[str, str, int | None]


def origin(url: str) -> Origin:
    """Scheme, host and port, with the scheme's own port where none is written."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme)


def redirected(request: HttpRequest, status: int, headers: Mapping[str, str]) -> HttpRequest | None:
    """The request to make next, or None when the answer is final."""
    target = headers.get("location")
    if status not in STATUSES or not target or not request.follow_redirects:
        return None
    following = _to(request, status, urljoin(request.url, target))
    if origin(following.url) == origin(request.url):
        return following
    return None if _needs_its_body(request, status) else _for_stranger(following)


def _needs_its_body(request: HttpRequest, status: int) -> bool:
    return request.method not in ("GET", "HEAD") and status != 303


def _to(request: HttpRequest, status: int, url: str) -> HttpRequest:
    if urlsplit(url).scheme not in _PORTS:
        raise ValueError("it redirects to an address that is not HTTP")
    if status in (307, 308) or request.method in ("GET", "HEAD"):
        return replace(request, url=url)
    return replace(request, method="GET", url=url, body=None)


def _for_stranger(request: HttpRequest) -> HttpRequest:
    kept = {n: value for n, value in request.headers.items() if n.lower() in _FOR_STRANGERS}
    return replace(request, headers=kept)
