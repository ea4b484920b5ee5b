"""Calls to the server: headers, credentials, limiter, breaker, events and retries, once for all.

Everything above asks for a path and gets a good answer or a typed error; everything below moves
bytes. Runs on the SDK's loop only.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import platform
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, NoReturn, TypeVar, cast
from urllib.parse import urlencode

from pydantic import BaseModel, ValidationError

from tinkex.client import events, purposes
from tinkex.client.breaker import CircuitBreaker
from tinkex.client.config import Config
from tinkex.client.errors import (
    APIConnectionError,
    APIError,
    APIResponseValidationError,
    APIStatusError,
    APITimeoutError,
    AuthenticationError,
    BillingError,
    CircuitOpenError,
    TinkerError,
    status_error,
)
from tinkex.client.exchange import RequestInfo, ResponseInfo
from tinkex.client.limiter import RateLimiter, shared_limiter
from tinkex.client.outage import Outage
from tinkex.client.purposes import Purpose
from tinkex.client.redaction import redact_text
from tinkex.client.retry import (
    backoff,
    is_retryable,
    is_retryable_status_code,
    jittered,
    retry_delay_from_headers,
)
from tinkex.client.tokens import WAYS_TO_A_KEY, TokenSource
from tinkex.client.transport import (
    HttpRequest,
    HttpResponse,
    Refused,
    StreamingTransport,
    Transport,
    TransportError,
    TransportTimeout,
)
from tinkex.client.transport.local import LOCAL_ORIGIN
from tinkex.client.version import package_version
from tinkex.wire import limits, routes
from tinkex.wire.limits import JSON_TYPE

M = TypeVar("M", bound=BaseModel)

# Proxies answer some broken connections with a bare 400; this many are taken for what they are.
EMPTY_400_CREDITS = 16

logger = logging.getLogger("tinkex")


class Api:
    """One client's way to its server."""

    def __init__(self, config: Config, transport: Transport) -> None:
        self.config = config
        self.bus = config.events
        self.tokens = TokenSource(config)
        self.billing_window = 3600.0
        self._transport = transport
        self._origin = LOCAL_ORIGIN if config.is_local else config.base_url
        self._limiter: RateLimiter = shared_limiter(config.base_url, self.tokens.identity)
        self._breaker = CircuitBreaker(config.breaker) if config.breaker else None
        self._outage = Outage(
            config.base_url, config.timings.outage_log_after, config.timings.queue_log_interval
        )
        self._headers = _fixed_headers(config)
        # One random name and a counter: as unique as a new UUID for each call, and much cheaper.
        self._key_prefix = f"tinkex-{uuid.uuid4()}"
        self._key_numbers = itertools.count()
        self._empty_400_credits = EMPTY_400_CREDITS
        self._billing_since: float | None = None
        self._billing_logged = 0.0

    # ---- what the rest of the SDK calls

    async def get(
        self,
        path: str,
        model: type[M],
        purpose: Purpose,
        *,
        headers: Mapping[str, str] = {},
        **params: Any,
    ) -> M:
        """GET and validate. Parameters that are None are left out."""
        response = await self.send("GET", path, purpose, headers=headers, params=params)
        return self.decode(response, model, path)

    async def post(
        self,
        path: str,
        body: bytes,
        model: type[M],
        purpose: Purpose,
        *,
        headers: Mapping[str, str] = {},
        idempotency_key: str | None = None,
    ) -> M:
        """POST JSON and validate the answer."""
        response = await self.send(
            "POST", path, purpose, body=body, headers=headers, idempotency_key=idempotency_key
        )
        return self.decode(response, model, path)

    def decode(self, response: HttpResponse, model: type[M], path: str) -> M:
        try:
            return model.model_validate_json(response.content)
        except ValidationError as error:
            fields = ", ".join(".".join(map(str, item["loc"])) or "body" for item in error.errors())
            raise APIResponseValidationError(
                ResponseInfo.describe(response.status, response.headers),
                body=None,
                message=f"The answer of {path} is not a valid {model.__name__} (check: {fields}).",
            ) from error

    async def send(
        self,
        method: str,
        path: str,
        purpose: Purpose,
        *,
        body: bytes | None = None,
        content_type: str = JSON_TYPE,
        accept: str = JSON_TYPE,
        headers: Mapping[str, str] = {},
        params: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        credential: str | None = None,
    ) -> HttpResponse:
        """Send until there is a good answer or a reason to stop; raises an ``APIError``.

        ``idempotency_key`` fixes the key for all attempts; ``credential`` replaces the client's
        own. Both layers of retries follow ``purpose``.
        """
        call = _Call(
            method,
            self._url(path, params),
            path,
            purpose,
            body,
            {
                **headers,
                "Accept": accept,
                **({} if method == "GET" else {"Content-Type": content_type}),
            },
            idempotency_key,
            credential,
        )
        return await (self._with_outer_retries(call) if purpose.outer else self._inner(call))

    async def stream_lines(self, path: str, body: bytes, purpose: Purpose) -> AsyncIterator[bytes]:
        """The lines of a streamed answer as they arrive. Never retried."""
        call = _Call(
            "POST", self._url(path, None), path, purpose, body, {"Accept": JSON_TYPE}, None, None
        )
        call.headers = {**call.headers, "Content-Type": JSON_TYPE}
        await self._wait_for_limiter(call)
        headers = await self._headers_for(call, self._new_key(), 0)
        started = time.monotonic()
        transport = cast(StreamingTransport, self._transport)
        rest = b""
        try:
            async with aclosing(
                transport.stream(HttpRequest("POST", call.url, headers, body))
            ) as pieces:
                async for piece in pieces:
                    *lines, rest = (rest + piece).split(b"\n")
                    for line in lines:
                        yield line
        except Refused as refused:
            self._judge(call, headers, refused.response, started)
        except TransportError as error:
            self._fail(call, headers, error, started)
        if rest:
            yield rest

    async def aclose(self) -> None:
        await self.tokens.aclose()
        await self._transport.aclose()

    # ---- layers, outermost first

    async def _with_outer_retries(self, call: _Call) -> HttpResponse:
        timings = self.config.timings
        started = time.monotonic()
        attempt = 0
        while True:
            try:
                return await self._inner(call)
            except BillingError as error:
                await self._pause_for_billing(error)
            except APIError as error:
                out_of_time = time.monotonic() - started >= timings.outer_window
                if not is_retryable(error) or out_of_time:
                    if is_retryable(error):
                        self.bus.emit(events.RETRY_EXHAUSTED, layer="outer", path=call.path)
                    raise
                delay = backoff(attempt, timings.outer_delay_first, timings.outer_delay_max)
                self._report_retry("outer", call, error, attempt, delay)
                await asyncio.sleep(delay)
                attempt += 1

    async def _inner(self, call: _Call) -> HttpResponse:
        retries = self.config.timings.inner_retries if call.purpose.inner else 0
        key = call.idempotency_key or self._new_key()
        for attempt in range(retries + 1):
            try:
                return await self._once(call, key, attempt)
            except CircuitOpenError:
                raise
            except (APIConnectionError, APIStatusError) as error:
                if attempt == retries or not _retry_inner(error):
                    raise
                delay = self._inner_delay(error, attempt)
                self._report_retry("inner", call, error, attempt, delay)
                await asyncio.sleep(delay)
        raise AssertionError("unreachable")

    def _inner_delay(self, error: APIError, attempt: int) -> float:
        if error.retry_after is not None:
            return error.retry_after
        timings = self.config.timings
        return jittered(backoff(attempt, timings.inner_delay_first, timings.inner_delay_max))

    async def _once(self, call: _Call, idempotency_key: str, attempt: int) -> HttpResponse:
        await self._wait_for_limiter(call)
        headers = await self._headers_for(call, idempotency_key, attempt)
        self._refuse_if_open(call, headers)
        started = time.monotonic()
        self.bus.emit(events.HTTP_START, method=call.method, path=call.path, attempt=attempt)
        request = HttpRequest(
            call.method, call.url, headers, call.body, call.timeout(self.config.timeout.read)
        )
        try:
            response = await self._transport.request(request)
        except TransportError as error:
            self._fail(call, headers, error, started)
        except asyncio.CancelledError:
            if self._breaker is not None:
                self._breaker.abandoned()
            raise
        return self._judge(call, headers, response, started)

    async def _wait_for_limiter(self, call: _Call) -> None:
        if self._limiter.remaining > 0:
            waited = await self._limiter.wait()
            self.bus.emit(events.LIMITER_WAIT, waited, path=call.path)

    async def _headers_for(self, call: _Call, idempotency_key: str, attempt: int) -> dict[str, str]:
        headers = {
            **self._headers,
            limits.HEADER_API_KEY: call.credential or await self.tokens.current(),
            "x-stainless-retry-count": str(attempt),
            "x-stainless-read-timeout": str(call.timeout(self.config.timeout.read)),
            **call.headers,
        }
        if call.method != "GET":
            headers[limits.HEADER_IDEMPOTENCY_KEY] = idempotency_key
        if self.config.trace_context is not None and (parent := self.config.trace_context()):
            headers["traceparent"] = parent
        return headers

    def _refuse_if_open(self, call: _Call, headers: Mapping[str, str]) -> None:
        if self._breaker is not None and (wait := self._breaker.refusal()) is not None:
            raise CircuitOpenError(call.describe(headers), wait)

    def _fail(
        self, call: _Call, headers: Mapping[str, str], error: TransportError, started: float
    ) -> NoReturn:
        info = call.describe(headers)
        self._breaker_failed()
        self._outage.failed(started, redact_text(str(error)))
        self.bus.emit(
            events.HTTP_EXCEPTION,
            time.monotonic() - started,
            method=call.method,
            path=call.path,
            error=str(error),
        )
        if isinstance(error, TransportTimeout):
            raise APITimeoutError(info) from error
        raise APIConnectionError(info, f"Connection error: {redact_text(str(error))}") from error

    def _judge(
        self, call: _Call, headers: Mapping[str, str], response: HttpResponse, started: float
    ) -> HttpResponse:
        """Return a good answer, raise for any other; everyone learns what it means for them."""
        duration = time.monotonic() - started
        self._outage.over()
        self.bus.emit(
            events.HTTP_STOP, duration, method=call.method, path=call.path, status=response.status
        )
        _log_deprecation(response)
        if response.status < 400:
            self._breaker_succeeded()
            self._empty_400_credits = min(EMPTY_400_CREDITS, self._empty_400_credits + 1)
            self._billing_since = None
            return response
        if response.status == 400 and not response.content and self._empty_400_credits > 0:
            self._empty_400_credits -= 1
            raise APIConnectionError(
                call.describe(headers), "Connection error: a proxy answered 400 with no body."
            )
        self._note_status(call, response)
        info = call.describe(headers)
        content = response.content
        described = ResponseInfo.describe(response.status, response.headers, info, content)
        error = status_error(described, content)
        if isinstance(error, AuthenticationError) and self.tokens.is_missing:
            message = f"No API key, and this server has keys of its own. {WAYS_TO_A_KEY}"
            error = AuthenticationError(message, response=described, body=error.body)
        error.retry_after = retry_delay_from_headers(
            response.headers, self.config.timings.retry_after_max
        )
        raise error

    def _note_status(self, call: _Call, response: HttpResponse) -> None:
        if response.status >= 500:
            self._breaker_failed()
        else:
            self._breaker_succeeded()
        if response.status != 429:
            return
        largest = self.config.timings.retry_after_max
        if (delay := retry_delay_from_headers(response.headers, largest)) is not None:
            self._limiter.hold(delay)
            self.bus.emit(events.LIMITER_HOLD, path=call.path, delay=delay)

    def _breaker_failed(self) -> None:
        if self._breaker is not None and self._breaker.failed():
            self.bus.emit(events.BREAKER_OPEN, base_url=self.config.base_url)

    def _breaker_succeeded(self) -> None:
        if self._breaker is not None and self._breaker.succeeded():
            self.bus.emit(events.BREAKER_CLOSE, base_url=self.config.base_url)

    # ---- billing pauses

    async def _pause_for_billing(self, error: BillingError) -> None:
        """Sleep one billing pause, or raise when the pause has lasted too long."""
        if not self.should_pause_for_billing(str(error)):
            raise error
        await asyncio.sleep(self.config.timings.billing_delay)

    def should_pause_for_billing(self, detail: str) -> bool:
        """Whether a 402 is still within the window in which work waits instead of failing."""
        now = time.monotonic()
        timings = self.config.timings
        quiet = now - self._billing_logged >= timings.billing_incident_reset
        if self._billing_since is None or quiet:
            self._billing_since = now
        if now - self._billing_since > self.billing_window:
            return False
        if now - self._billing_logged >= timings.billing_log_interval:
            self._billing_logged = now
            logger.warning("Paused: the server reports a billing problem: %s", detail)
        return True

    # ---- small parts

    def _new_key(self) -> str:
        return f"{self._key_prefix}-{next(self._key_numbers)}"

    def _url(self, path: str, params: Mapping[str, Any] | None) -> str:
        query = {key: value for key, value in (params or {}).items() if value is not None}
        return f"{self._origin}{path}" + (f"?{urlencode(query)}" if query else "")

    def _report_retry(
        self, layer: str, call: _Call, error: APIError, attempt: int, delay: float
    ) -> None:
        self.bus.emit(
            events.RETRY_SCHEDULED,
            layer=layer,
            path=call.path,
            error=type(error).__name__,
            attempt=attempt,
            delay=delay,
        )
        logger.info("retrying %s in %.2f s after %s", call.path, delay, type(error).__name__)

    async def exchange_token(self, credential: str) -> str:
        """Trade a raw credential for a JWT."""
        response = await self.send(
            "POST", routes.AUTH_TOKEN, purposes.TOKEN, body=b"{}", credential=credential
        )
        token = json.loads(response.content).get("jwt")
        if not isinstance(token, str) or not token:
            raise TinkerError("The server answered the token exchange without a token.")
        return token


class _Call:
    """What stays the same over all attempts of one call."""

    __slots__ = (
        "body",
        "credential",
        "headers",
        "idempotency_key",
        "method",
        "path",
        "purpose",
        "url",
    )

    def __init__(
        self,
        method: str,
        url: str,
        path: str,
        purpose: Purpose,
        body: bytes | None,
        headers: Mapping[str, str],
        idempotency_key: str | None,
        credential: str | None,
    ) -> None:
        self.method = method
        self.url = url
        self.path = path
        self.purpose = purpose
        self.body = body
        self.headers = headers
        self.idempotency_key = idempotency_key
        self.credential = credential

    def describe(self, headers: Mapping[str, str]) -> RequestInfo:
        return RequestInfo.describe(self.method, self.url, headers)

    def timeout(self, default: float | None) -> float | None:
        return default if self.purpose.timeout is None else self.purpose.timeout


def _retry_inner(error: APIError) -> bool:
    if isinstance(error, APIStatusError):
        said = error.response.headers.get(limits.HEADER_SHOULD_RETRY)
        if said in ("true", "false"):
            return bool(said == "true")
        return is_retryable_status_code(error.status_code)
    return True


def _fixed_headers(config: Config) -> dict[str, str]:
    return {
        "User-Agent": f"tinkex/{package_version()} Python/{platform.python_version()}",
        "X-Stainless-Package-Version": limits.PROTOCOL_VERSION,
        **config.headers,
    }


def _log_deprecation(response: HttpResponse) -> None:
    note = response.headers.get(limits.HEADER_DEPRECATION_NOTE)
    if note:
        severe = response.headers.get(limits.HEADER_DEPRECATION_LEVEL) == "error"
        logger.log(logging.ERROR if severe else logging.WARNING, "%s", note)
