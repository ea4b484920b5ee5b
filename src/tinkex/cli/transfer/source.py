"""Where bytes come from: a URL opened at an offset.

A source answers one request; trying again is the business of `parts`.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from tinkex.cli.errors import CliError

READ_TIMEOUT_SECONDS = 60.0


class Body(Protocol):
    """The bytes of an answer, read into the caller's buffer. 0 means the end, or a cut."""

    def readinto(self, buffer: memoryview, /) -> int: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Answer:
    """A file, or the rest of it from byte `start`. What the server did not say is None."""

    start: int
    size: int | None
    etag: str | None
    sha256: str | None
    body: Body


class Refused(Exception):
    """The server answered, but not with the file."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the server answered {status}")
        self.status = status


class Cut(Exception):
    """No answer came, or it ended too early; the rest may come with another try."""


class Source(Protocol):
    """Opens URLs."""

    def open(self, url: str, start: int, etag: str | None) -> Answer:
        """The file from `start` on, if it is still the one with `etag`; otherwise the whole file.
        Raises `Refused` or `Cut`."""
        ...


class NetworkSource:
    """Files from HTTP and HTTPS URLs, through the proxies the system is set up with."""

    def open(self, url: str, start: int, etag: str | None) -> Answer:
        import http.client
        import urllib.error
        import urllib.request

        if urlsplit(url).scheme not in ("http", "https"):
            raise CliError(f"The server gave a URL that is not for downloads: {url:.80}")
        request = urllib.request.Request(url, headers=range_headers(start, etag))
        try:
            response = urllib.request.urlopen(request, timeout=READ_TIMEOUT_SECONDS)
        except urllib.error.HTTPError as error:
            error.close()
            raise Refused(error.code) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Cut(str(getattr(error, "reason", error))) from error
        return read_answer(response.status, dict(response.headers.items()), response)


class EmbeddedSource:
    """Files of the server in this process: it names them, instead of links no socket answers.

    Only for that server: another one must not be able to name files of this machine.
    """

    def open(self, url: str, start: int, etag: str | None) -> Answer:
        from urllib.request import url2pathname

        parts = urlsplit(url)
        if parts.scheme != "file":
            return NetworkSource().open(url, start, etag)  # a server in another process answered
        try:
            body = open(url2pathname(parts.path), "rb", buffering=0)  # noqa: SIM115 - its reader closes it
        except FileNotFoundError:
            raise Refused(404) from None
        return Answer(0, os.fstat(body.fileno()).st_size, None, None, body)


def range_headers(start: int, etag: str | None) -> dict[str, str]:
    """Asks for the rest of a file; without a strong tag the whole file is safer."""
    plain = {"Accept-Encoding": "identity"}
    if not start or etag is None:
        return plain
    return {**plain, "Range": f"bytes={start}-", "If-Range": etag}


def read_answer(status: int, headers: dict[str, str], body: Body) -> Answer:
    """What an answer's headers say about the file."""
    by_name = {name.lower(): value for name, value in headers.items()}
    start, size = 0, _number(by_name.get("content-length"))
    if status == 206:
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", by_name.get("content-range", ""))
        start = int(found[1]) if found else 0
        size = _number(found[2]) if found else None
    etag = by_name.get("etag", "")
    strong = etag if etag.startswith('"') else None
    return Answer(start, size, strong, _sha256(by_name, strong), body)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def _sha256(headers: dict[str, str], etag: str | None) -> str | None:
    """The content's digest where the server states one: RFC 9530, or a tag that says so."""
    found = re.search(r"sha-256=:([A-Za-z0-9+/=]+):", headers.get("repr-digest", ""))
    if found:
        try:
            return base64.b64decode(found[1], validate=True).hex()
        except binascii.Error:
            return None
    tagged = re.fullmatch(r'"sha256[-:]([0-9a-f]{64})"', etag or "")
    return tagged[1] if tagged else None
