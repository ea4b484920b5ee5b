"""Every error the SDK raises, in one tree.

    Exception
    └─ TinkerError
       ├─ APIError(message, request, *, body)
       │  ├─ APIResponseValidationError(response, body, message=None)
       │  ├─ APIStatusError(message, response, body)
       │  │  ├─ BadRequestError 400
       │  │  │  └─ InvalidArgumentError(message), also a ValueError     (addition)
       │  │  ├─ AuthenticationError 401
       │  │  ├─ BillingError 402           ├─ PermissionDeniedError 403
       │  │  ├─ NotFoundError 404          ├─ ConflictError 409
       │  │  ├─ UnprocessableEntityError 422
       │  │  ├─ RateLimitError 429         └─ InternalServerError >= 500
       │  └─ APIConnectionError(request, message)
       │     ├─ APITimeoutError(request)
       │     └─ CircuitOpenError(request, retry_after)        (addition)
       ├─ RequestFailedError(message, request_id, category)
       │  └─ InvalidDataError(message), also a ValueError     (addition)
       ├─ FutureRetrievalError, also a ValueError             (addition)
       ├─ RetryableException                                  (a promise the server lost)
       ├─ ClientClosedError, also a RuntimeError              (addition)
       └─ TokenizerError, also a RuntimeError                 (addition)
    FutureWarning
    └─ ExperimentalWarning

Additions on every error: ``is_user_error`` (the caller must change something; otherwise a retry
may help), ``category``, ``request_id`` and ``retry_after``. All of them pickle. Requests kept on
errors are descriptions with their secrets removed, never the live request.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tinkex.client.redaction import redact_text
from tinkex.text.errors import TokenizerError as TokenizerError
from tinkex.types.errors import TinkerError as TinkerError

if TYPE_CHECKING:
    from tinkex.client.error_details import ResponseInfo
    from tinkex.types import RequestErrorCategory

# 4xx answers that say nothing about the caller's input.
_TRANSIENT_CLIENT_STATUSES = frozenset({408, 429})


class APIError(TinkerError):
    """A request was made and did not end well."""

    message: str
    request: Any
    body: object | None

    def __init__(self, message: str, request: Any, *, body: object | None) -> None:
        super().__init__(message)
        self.message = message
        self.request = request
        self.body = body


class APIResponseValidationError(APIError):
    """The server answered with something this API does not allow."""

    response: Any
    status_code: int

    def __init__(self, response: Any, body: object | None, message: str | None = None) -> None:
        text = message or "Data returned by the server does not match the expected schema."
        super().__init__(text, getattr(response, "request", None), body=body)
        self.response = response
        self.status_code = response.status_code


class APIStatusError(APIError):
    """The server answered with a 4xx or 5xx status, or redirects to another server."""

    response: Any
    status_code: int

    def __init__(self, message: str, response: Any, body: object | None) -> None:
        super().__init__(message, getattr(response, "request", None), body=body)
        self.response = response
        self.status_code = response.status_code
        self.request_id = _header(response, "x-request-id")

    @property
    def is_user_error(self) -> bool:
        """True when repeating the same call cannot help: the caller must change something."""
        return self.status_code < 500 and self.status_code not in _TRANSIENT_CLIENT_STATUSES

    @property
    def category(self) -> RequestErrorCategory:
        """Whose fault it is, in the server's vocabulary: user, server or unknown."""
        from tinkex.types import RequestErrorCategory

        return RequestErrorCategory.Server if self.status_code >= 500 else super().category


class BadRequestError(APIStatusError):
    """400: the server could not make sense of the request."""


class InvalidArgumentError(BadRequestError, ValueError):
    """An argument that no server would take: nothing was sent.

    Reads as the 400 that it would have been, so that a program that is written to go on after a
    refusal needs no second handler for ours.
    """

    def __init__(self, message: str) -> None:
        from tinkex.client.error_details import ResponseInfo

        body = {"detail": message}
        response = ResponseInfo(400, text=json.dumps(body))
        super().__init__(message, response=response, body=body)


class AuthenticationError(APIStatusError):
    """401: the key is missing, unknown or revoked."""


class BillingError(APIStatusError):
    """402: the account cannot pay for this."""


class PermissionDeniedError(APIStatusError):
    """403: the key is known but may not do this."""


class NotFoundError(APIStatusError):
    """404: no such thing, or not yours."""


class ConflictError(APIStatusError):
    """409: the thing is not in a state that allows this."""


class UnprocessableEntityError(APIStatusError):
    """422: the request was understood and refused."""


class RateLimitError(APIStatusError):
    """429: too many requests; ``retry_after`` says how long to wait when the server said so."""


class InternalServerError(APIStatusError):
    """5xx: the server failed; the same request may succeed later."""


class APIConnectionError(APIError):
    """No usable answer arrived."""

    def __init__(self, request: Any, message: str = "Connection error.") -> None:
        super().__init__(message, request, body=None)


class APITimeoutError(APIConnectionError):
    """The answer did not arrive in time."""

    def __init__(self, request: Any) -> None:
        super().__init__(request, "Request timed out.")


class CircuitOpenError(APIConnectionError):
    """The circuit breaker is open: recent calls failed, so this one was not sent."""

    def __init__(self, request: Any, retry_after: float) -> None:
        super().__init__(
            request,
            f"Circuit breaker open after repeated failures; next attempt in {retry_after:.1f} s.",
        )
        self.retry_after = retry_after


class RequestFailedError(TinkerError):
    """The server took the request, worked on it and reports that it failed."""

    message: str
    request_id: str

    def __init__(self, message: str, request_id: str, category: RequestErrorCategory) -> None:
        super().__init__(message)
        self.message = message
        self.request_id = request_id
        self._category = category

    @property
    def category(self) -> RequestErrorCategory:
        """Whose fault it is, in the server's vocabulary: user, server or unknown."""
        return self._category

    @property
    def is_user_error(self) -> bool:
        """True when repeating the same call cannot help: the caller must change something."""
        return self._category == "user"


class InvalidDataError(RequestFailedError, ValueError):
    """Training data that no server could work on: nothing was sent.

    A program that leaves a bad batch out catches it as the failed request that it would have been.
    """

    def __init__(self, message: str) -> None:
        from tinkex.types import RequestErrorCategory

        super().__init__(message, "", RequestErrorCategory.User)


class FutureRetrievalError(TinkerError, ValueError):
    """The result of an accepted request cannot be fetched or read; asking again will not help."""

    def __init__(self, message: str, request_id: str, status_code: int | None = None) -> None:
        super().__init__(message)
        self.request_id = request_id
        self.status_code = status_code

    @property
    def is_user_error(self) -> bool:
        """True when repeating the same call cannot help: the caller must change something."""
        status = self.status_code
        return (
            status is not None and 400 <= status < 500 and status not in _TRANSIENT_CLIENT_STATUSES
        )


class RetryableException(TinkerError):
    """The server no longer knows the promise (410): submit the work again."""

    def __init__(self, message: str, request_id: str | None = None) -> None:
        super().__init__(message)
        self.request_id = request_id


class ClientClosedError(TinkerError, RuntimeError):
    """The client was used after it was closed, or in a process it does not belong to."""

    @property
    def is_user_error(self) -> bool:
        """True when repeating the same call cannot help: the caller must change something."""
        return True


class ExperimentalWarning(FutureWarning):
    """The feature may change or go away without notice."""


_BY_STATUS: dict[int, type[APIStatusError]] = {
    400: BadRequestError,
    401: AuthenticationError,
    402: BillingError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    422: UnprocessableEntityError,
    429: RateLimitError,
}


def status_error(response: ResponseInfo, content: bytes) -> APIStatusError:
    """The right subclass for an answer of 400 or more, with its body decoded where it can be."""
    body = _decode_body(content)
    status = response.status_code
    cls = _BY_STATUS.get(status, InternalServerError if status >= 500 else APIStatusError)
    if isinstance(body, str):
        message = body or f"Error code: {status}"
    elif body is None:
        message = f"Error code: {status}"
    else:
        message = f"Error code: {status} - {body}"
    return cls(redact_text(message), response=response, body=body)


def redirect_error(response: ResponseInfo) -> APIStatusError:
    """A redirect that was not followed: the key would have gone to somebody else."""
    target = redact_text(response.headers.get("location", "")) or "nowhere"
    return APIStatusError(
        f"The server redirects to {target}. Nothing was sent there, because it is another server: "
        "if you trust it, use its address as base_url.",
        response=response,
        body=None,
    )


def _decode_body(content: bytes) -> object | None:
    if not content:
        return None
    try:
        decoded: object = json.loads(content)
    except ValueError:
        return content.decode("utf-8", errors="replace").strip()
    return decoded


def _header(response: Any, name: str) -> str | None:
    headers = getattr(response, "headers", None)
    if headers is None:
        return None
    return next((value for key, value in headers.items() if key.lower() == name), None)


def is_user_error(exception: BaseException) -> bool:
    """Whether this exception, or one it was raised from, is the caller's to fix."""
    seen: set[int] = set()
    current: BaseException | None = exception
    while current is not None and id(current) not in seen:
        if isinstance(current, TinkerError) and current.is_user_error:
            return True
        seen.add(id(current))
        current = current.__cause__ or current.__context__
    return False


for _error in [kind for kind in globals().values() if isinstance(kind, type)]:
    if issubclass(_error, Exception):
        _error.__module__ = "tinkex"  # where users find them, and what a traceback shows
