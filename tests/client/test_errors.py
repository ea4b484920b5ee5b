"""One tree of errors: what each knows, and that none of them tells a secret or loses itself."""

import pickle

import pytest

import tinkex
from tinkex.client import errors
from tinkex.client.error_details import RequestInfo, ResponseInfo
from tinkex.client.errors import status_error
from tinkex.types import RequestErrorCategory

REQUEST = RequestInfo.describe("POST", "http://h/x", {"X-API-Key": "tml-secret", "A": "b"})

EXAMPLES = [
    errors.APIError("m", REQUEST, body={"a": 1}),
    errors.APIConnectionError(REQUEST),
    errors.APITimeoutError(REQUEST),
    errors.CircuitOpenError(REQUEST, 2.0),
    errors.APIResponseValidationError(ResponseInfo(200), body=None),
    *[status_error(ResponseInfo(c, {}, REQUEST), b'{"detail":"no"}') for c in (400, 401, 500, 418)],
    errors.RequestFailedError("m", "r1", RequestErrorCategory.Server),
    errors.InvalidArgumentError("rank: must be at least 1, got 0"),
    errors.InvalidDataError("data[0]: holds NaN"),
    errors.FutureRetrievalError("m", "r1", 404),
    errors.RetryableException("m", "r1"),
    errors.ClientClosedError("closed"),
    errors.TokenizerError("m"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)
def test_every_error_pickles_whole(error: errors.TinkerError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.__dict__ == error.__dict__
    assert copy.is_user_error == error.is_user_error
    assert copy.category == error.category


@pytest.mark.parametrize(
    ("code", "kind", "user"),
    [
        (400, "BadRequestError", True),
        (401, "AuthenticationError", True),
        (402, "BillingError", True),
        (403, "PermissionDeniedError", True),
        (404, "NotFoundError", True),
        (408, "APIStatusError", False),
        (409, "ConflictError", True),
        (422, "UnprocessableEntityError", True),
        (429, "RateLimitError", False),
        (500, "InternalServerError", False),
        (503, "InternalServerError", False),
    ],
)
def test_a_status_becomes_its_error(code: int, kind: str, user: bool) -> None:
    error = status_error(ResponseInfo(code, {"x-request-id": "q"}), b'{"detail":"why"}')
    assert type(error).__name__ == kind
    assert error.status_code == code
    assert error.is_user_error is user
    assert error.request_id == "q"
    assert str(error) == f"Error code: {code} - {{'detail': 'why'}}"


@pytest.mark.parametrize(
    ("content", "message", "body"),
    [(b"", "Error code: 500", None), (b" plain text ", "plain text", "plain text")],
)
def test_bodies_that_are_not_json(content: bytes, message: str, body: object) -> None:
    error = status_error(ResponseInfo(500), content)
    assert str(error) == message
    assert error.body == body


def test_requests_kept_on_errors_hold_no_secret() -> None:
    assert "tml-secret" not in repr(REQUEST)
    assert REQUEST.headers["A"] == "b"


def test_a_key_echoed_by_the_server_is_not_shown() -> None:
    error = status_error(ResponseInfo(401), b'{"detail":"bad key tml-abc123"}')
    assert "tml-abc123" not in str(error)


def test_the_answer_is_read_as_handlers_for_the_official_sdk_do() -> None:
    headers = {"Content-Type": "application/json", "x-api-key": "tml-secret"}
    answer = ResponseInfo.describe(404, headers, REQUEST, b'{"detail": "no run tml-abc123"}')
    error = pickle.loads(pickle.dumps(status_error(answer, b'{"detail": "no run"}')))
    response = error.response
    assert response.json() == {"detail": "no run [redacted]"}
    assert response.text.encode() == response.content == response.read()
    assert (response.status_code, response.reason_phrase) == (404, "Not Found")
    assert (response.is_success, response.is_error, response.is_client_error) == (False, True, True)
    assert response.url == response.request.url == error.request.url
    assert response.headers["content-type"] == response.headers.get("CONTENT-TYPE")
    assert "tml-" not in repr(response)
    assert not response.is_server_error
    assert ResponseInfo(599).reason_phrase == ""


def test_a_cause_makes_an_error_the_users() -> None:
    error = RuntimeError("while saving")
    error.__cause__ = status_error(ResponseInfo(404), b"")
    assert errors.is_user_error(error)
    assert not errors.is_user_error(RuntimeError("alone"))


def test_the_tree_is_the_official_one() -> None:
    tinker = pytest.importorskip("tinker")
    for name in tinker.__all__:
        official = getattr(tinker, name)
        if isinstance(official, type) and issubclass(official, BaseException):
            ours = getattr(tinkex, name)
            theirs = [c.__name__ for c in official.__mro__]
            assert [c.__name__ for c in ours.__mro__][: len(theirs)] == theirs


def test_official_constructors_work_with_foreign_objects() -> None:
    httpx = pytest.importorskip("httpx")
    request = httpx.Request("GET", "http://h/")
    response = httpx.Response(404, request=request)
    error = tinkex.NotFoundError("gone", response=response, body=None)
    assert error.status_code == 404
    assert error.request is request
    assert str(tinkex.APITimeoutError(request)) == "Request timed out."
