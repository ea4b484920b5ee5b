"""Files of the server embedded in this process, whose URLs no socket answers.

Reads in windows, so that a large file never lies in memory whole.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from tinkex.cli.transfer.source import (
    READ_TIMEOUT_SECONDS,
    Answer,
    Cut,
    NetworkSource,
    Refused,
    read_answer,
)
from tinkex.client.loop import acquire
from tinkex.client.transport import HttpRequest, HttpResponse, TransportError
from tinkex.client.transport.local import LOCAL_ORIGIN, LocalTransport

WINDOW_BYTES = 16 << 20
_HOSTS = ("local", urlsplit(LOCAL_ORIGIN).netloc)


class AnySource:
    """Opens embedded URLs in this process and all others over the network."""

    def __init__(self) -> None:
        self._network = NetworkSource()
        self._embedded: EmbeddedSource | None = None

    def open(self, url: str, start: int, etag: str | None) -> Answer:
        if urlsplit(url).netloc not in _HOSTS:
            return self._network.open(url, start, etag)
        if self._embedded is None:
            self._embedded = EmbeddedSource()
        return self._embedded.open(url, start, etag)

    def close(self) -> None:
        if self._embedded is not None:
            self._embedded.close()


class EmbeddedSource:
    """Opens URLs of the embedded server, which some client of this process keeps running."""

    def __init__(self) -> None:
        self._lease = acquire()
        self._transport = LocalTransport()

    def open(self, url: str, start: int, etag: str | None) -> Answer:
        first = self.window(url, start, etag if start else None)
        if first.status >= 400:
            raise Refused(first.status)
        body = _Windows(self, url, first)
        answer = read_answer(first.status, dict(first.headers), body)
        body.expect(answer)
        return answer

    def window(self, url: str, start: int, etag: str | None) -> HttpResponse:
        """The next bytes of the file, from `start` on."""
        headers = {"range": f"bytes={start}-{start + WINDOW_BYTES - 1}"}
        if etag is not None:
            headers["if-range"] = etag
        request = HttpRequest("GET", url, headers, timeout=READ_TIMEOUT_SECONDS)
        try:
            return self._lease.submit(self._transport.request(request)).result()
        except TransportError as error:
            raise Cut(str(error)) from error

    def close(self) -> None:
        """Lets go of the embedded server."""
        if self._lease.usable:
            self._lease.submit(self._transport.aclose()).result()
            self._lease.release()


class _Windows:
    """A body that asks for the next window when the last is used up."""

    def __init__(self, source: EmbeddedSource, url: str, first: HttpResponse) -> None:
        self._source = source
        self._url = url
        self._rest = memoryview(first.content)
        self._next = len(first.content)
        self._size: int | None = None
        self._etag: str | None = None

    def expect(self, answer: Answer) -> None:
        """Learns from the first answer where the file ends."""
        self._next += answer.start
        self._size, self._etag = answer.size, answer.etag

    def readinto(self, buffer: memoryview, /) -> int:
        if not self._rest and self._size is not None and self._next < self._size:
            self._refill()
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def _refill(self) -> None:
        answer = self._source.window(self._url, self._next, self._etag)
        if answer.status != 206:
            raise Cut(f"the embedded server answered {answer.status} in the middle of a file")
        self._rest = memoryview(answer.content)
        self._next += len(answer.content)

    def close(self) -> None:
        self._rest = memoryview(b"")
