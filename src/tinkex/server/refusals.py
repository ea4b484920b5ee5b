"""Why a request is not served, as exceptions. Knows status numbers, knows nothing of HTTP objects.

    Refusal (422)
    ├── TooLong (400)        a prompt that does not fit, which programs look for as a 400
    ├── Unauthorized (401)   no key, or not one of ours
    ├── NotFound (404)       no such thing, or another tenant's: the answer is the same
    ├── Gone (410)           it was here: a finished session, a lost sample
    ├── TooLarge (413)       a body over its limit
    ├── Busy (429)           a quota is full; waiting helps
    └── Unavailable (503)    the server cannot keep its promises now: disk, drain

A refusal changes nothing. Work that was accepted and then went wrong is a failed future, not a
refusal. 400 is used for nothing else (clients take one without a length for a broken connection),
402 and 409 never.
"""

from __future__ import annotations


class Refusal(Exception):
    """A request that is not served; `detail` is for the person who sent it."""

    status = 422

    def __init__(self, detail: str, retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after = retry_after


class TooLong(Refusal):
    status = 400


class Unauthorized(Refusal):
    status = 401


class NotFound(Refusal):
    status = 404


class Gone(Refusal):
    status = 410


class TooLarge(Refusal):
    status = 413


class Busy(Refusal):
    status = 429


class Unavailable(Refusal):
    status = 503
