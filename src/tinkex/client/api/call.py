"""One call to the server: what stays the same over all its attempts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from tinkex.client.api.call_policies import Purpose
from tinkex.client.error_details import RequestInfo


@dataclass(frozen=True, slots=True)
class Call:
    """Method, address, body and headers of a request, and how it may be repeated."""

    method: str  # of HTTP
    url: str  # where it is sent
    path: str
    """The part of the address that logs and events show."""
    purpose: Purpose  # which decides how it is repeated
    body: bytes | None = field(default=None, repr=False)  # as it is sent, None for none
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # beside the client's own
    idempotency_key: str | None = None
    """The key of every attempt; None draws one for each time the call is made anew."""
    credential: str | None = field(default=None, repr=False)
    """Replaces the client's own."""
    follow_redirects: bool = True  # where an answer says to ask elsewhere
    began: float = field(default_factory=time.monotonic)
    """When it was first made, by the monotonic clock."""

    def describe(self, headers: Mapping[str, str]) -> RequestInfo:
        """The request as errors show it."""
        return RequestInfo.describe(self.method, self.url, headers)

    def timeout(self, default: float | None) -> float | None:
        """Seconds one attempt may take."""
        return default if self.purpose.timeout is None else self.purpose.timeout
