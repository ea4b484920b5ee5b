"""The request and the answer an error is about: plain values without secrets, which can be pickled.

Both are read like those of ``httpx``, because error handlers written for the official SDK do so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from tinkex.client.redaction import redact_headers, redact_text


class Headers(Mapping[str, str]):
    """Names and values; names are found in any case."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in values.items()}

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)


@dataclass(frozen=True)
class RequestInfo:
    """The request an error is about: method, URL and headers, secrets removed."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def describe(cls, method: str, url: str, headers: Mapping[str, str]) -> RequestInfo:
        return cls(method, redact_text(url), Headers(redact_headers(headers)))


@dataclass(frozen=True)
class ResponseInfo:
    """The answer an error is about: status, headers, body (secrets removed) and its request."""

    status_code: int
    headers: Mapping[str, str] = field(default_factory=dict)
    request: RequestInfo | None = None
    text: str = field(default="", repr=False)

    @classmethod
    def describe(
        cls,
        status: int,
        headers: Mapping[str, str],
        request: RequestInfo | None = None,
        content: bytes = b"",
    ) -> ResponseInfo:
        text = redact_text(content.decode("utf-8", errors="replace"))
        return cls(status, Headers(redact_headers(headers)), request, text)

    @property
    def content(self) -> bytes:
        return self.text.encode()

    def read(self) -> bytes:
        return self.content

    def json(self) -> Any:
        """The body as JSON; ``ValueError`` when it is none."""
        return json.loads(self.text)

    @property
    def url(self) -> str:
        return "" if self.request is None else self.request.url

    @property
    def reason_phrase(self) -> str:
        try:
            return HTTPStatus(self.status_code).phrase
        except ValueError:
            return ""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status_code < 300

    @property
    def is_client_error(self) -> bool:
        return 400 <= self.status_code < 500

    @property
    def is_server_error(self) -> bool:
        return self.status_code >= 500

    @property
    def is_error(self) -> bool:
        return self.status_code >= 400
