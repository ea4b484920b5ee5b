"""The seam between the SDK and whatever carries its bytes.

A transport sends one request and returns one whole answer; it is told nothing about
authentication, retries or the protocol. Forms: ``network`` (sockets), ``local`` (an ASGI app in
this process), ``scripted`` (tests).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request."""

    method: str  # GET, POST, …
    url: str  # absolute, query included
    headers: Mapping[str, str] = field(repr=False)  # may hold the key: never shown
    body: bytes | None = field(default=None, repr=False)  # already encoded; None sends none
    timeout: float | None = None  # seconds from connecting to the last byte; None waits for ever
    follow_redirects: bool = True  # as `redirects` says; otherwise a redirect is the answer


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """One whole answer; header names are in lower case and bodies are decompressed."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes = field(default=b"", repr=False)


class Refused(Exception):
    """A stream was asked for and the server answered with an error status."""

    def __init__(self, response: HttpResponse) -> None:
        super().__init__(f"status {response.status}")
        self.response = response


class TransportError(Exception):
    """No whole answer arrived: refused, cut, malformed or too large."""


class NobodyThere(TransportError):
    """The place a request was for is deserted; nothing was sent."""


class TransportTimeout(TransportError):
    """The time for this request ran out."""


class Transport(Protocol):
    """Two methods; anything that has them can carry the SDK's requests."""

    async def request(self, request: HttpRequest) -> HttpResponse:
        """Send and return the answer, whatever its status. TransportError when there is none."""
        ...

    async def aclose(self) -> None:
        """Release connections. No request may be made afterwards."""
        ...


class StreamingTransport(Transport, Protocol):
    """A transport that can also hand over a body as it arrives."""

    def stream(self, request: HttpRequest) -> AsyncGenerator[bytes, None]:
        """The pieces of the body; ``Refused`` for an error status. Closing it drops the request."""
        ...
