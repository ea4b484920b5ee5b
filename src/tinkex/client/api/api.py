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

from tinkex.client.api import call_policies
from tinkex.client.api.admission import Admission
from tinkex.client.api.billing_pause import BillingPause
from tinkex.client.api.call import Call
from tinkex.client.api.call_policies import Purpose
from tinkex.client.api.credentials_source import TokenSource
from tinkex.client.api.outage import PutOff
from tinkex.client.api.retry import (
    backoff,
    is_retryable,
    jittered,
    server_says,
)
from tinkex.client.api.verdicts import error_of, log_deprecation
from tinkex.client.error_details import ResponseInfo
from tinkex.client.errors import (
    APIConnectionError,
    APIError,
    APIResponseValidationError,
    APIStatusError,
    APITimeoutError,
    BillingError,
    RateLimitError,
    TinkerError,
)
from tinkex.client.events import bus as events
from tinkex.client.http import (
    HttpRequest,
    HttpResponse,
    Refused,
    StreamingTransport,
    Transport,
    TransportError,
    TransportTimeout,
)
from tinkex.client.redaction import redact_text
from tinkex.client.settings.config import Config
from tinkex.client.transport.local import LOCAL_ORIGIN
from tinkex.wire import limits, routes
from tinkex.wire.limits import JSON_TYPE
from tinkex.wire.package_version import package_version

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
        self.billing = BillingPause(config.timings)
        self._put_off = PutOff(config.base_url, config.timings)
        self._transport = transport
        self._origin = LOCAL_ORIGIN if config.is_local else config.base_url
        self._admission = Admission(config, self.tokens.identity, self._sign_of_life)
        self._headers = _fixed_headers(config)
        # One random name and a counter: as unique as a new UUID for each call, and much cheaper.
        self._key_prefix = f"tinkex-{uuid.uuid4()}"
        self._key_numbers = itertools.count()
        self._empty_400_credits = EMPTY_400_CREDITS

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
        follow_redirects: bool = True,
    ) -> HttpResponse:
        """Send until there is a good answer or a reason to stop; raises an ``APIError``.

        ``idempotency_key`` fixes the key for all attempts; ``credential`` replaces the client's
        own; with ``follow_redirects=False`` a redirect is a good answer. Both layers of retries
        follow ``purpose``.
        """
        call = Call(
            method,
            self.url(path, params),
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
            follow_redirects,
        )
        return await (self._with_outer_retries(call) if purpose.outer else self._inner(call))

    async def stream_lines(self, path: str, body: bytes, purpose: Purpose) -> AsyncIterator[bytes]:
        """The lines of a streamed answer as they arrive. Never retried."""
        kinds = {"Accept": JSON_TYPE, "Content-Type": JSON_TYPE}
        call = Call("POST", self.url(path), path, purpose, body, kinds)
        headers = await self._admitted(call, self._new_key(), 0)
        started = time.monotonic()
        transport = cast(StreamingTransport, self._transport)
        rest = b""
        try:
            async with aclosing(
                transport.stream(HttpRequest("POST", call.url, headers, body))
            ) as pieces:
                async for piece in pieces:
                    self._admission.answered(call, 200, {})
                    *lines, rest = (rest + piece).split(b"\n")
                    for line in lines:
                        yield line
        except Refused as refused:
            self._judge(call, headers, refused.response, started)
        except TransportError as error:
            self._fail(call, headers, error, started)
        except (asyncio.CancelledError, GeneratorExit):
            self._admission.abandoned()
            raise
        if rest:
            yield rest

    async def pause(self, seconds: float) -> None:
        """Wait before the next attempt, while the server cannot be reached until it can at most."""
        await self._admission.pause(seconds)

    async def aclose(self) -> None:
        await self._admission.aclose()
        await self.tokens.aclose()
        await self._transport.aclose()

    # ---- layers, outermost first

    async def _with_outer_retries(self, call: Call) -> HttpResponse:
        deadline = time.monotonic() + self.config.timings.outer_window
        attempt = 0
        while True:
            try:
                return await self._inner(call)
            except BillingError as error:
                if server_says(error) is False or not self.billing.goes_on(str(error)):
                    raise
                await asyncio.sleep(self.config.timings.billing_delay)
            except APIError as error:
                if not is_retryable(error):
                    raise
                if time.monotonic() >= deadline:
                    self.bus.emit(events.RETRY_EXHAUSTED, layer="outer", path=call.path)
                    raise
                delay = self._outer_delay(error, attempt)
                self._report_retry("outer", call, error, attempt, delay)
                await self.pause(delay)
                attempt += 1

    async def _inner(self, call: Call) -> HttpResponse:
        retries = self.config.timings.inner_retries if call.purpose.inner else 0
        key = call.idempotency_key or self._new_key()
        for attempt in range(retries + 1):
            try:
                return await self._once(call, key, attempt)
            except (APIConnectionError, APIStatusError) as error:
                if attempt == retries or not is_retryable(error):
                    raise
                delay = self._inner_delay(error, attempt)
                self._report_retry("inner", call, error, attempt, delay)
                await self.pause(delay)
        raise AssertionError("unreachable")

    def _outer_delay(self, error: APIError, attempt: int) -> float:
        timings = self.config.timings
        return error.retry_after or jittered(
            backoff(attempt, timings.outer_delay_first, timings.outer_delay_max)
        )

    def _inner_delay(self, error: APIError, attempt: int) -> float:
        timings = self.config.timings
        return error.retry_after or jittered(
            backoff(attempt, timings.inner_delay_first, timings.inner_delay_max)
        )

    async def _once(self, call: Call, idempotency_key: str, attempt: int) -> HttpResponse:
        headers = await self._admitted(call, idempotency_key, attempt)
        started = time.monotonic()
        self.bus.emit(events.HTTP_START, method=call.method, path=call.path, attempt=attempt)
        request = HttpRequest(
            call.method,
            call.url,
            headers,
            call.body,
            call.timeout(self.config.timeout.read),
            call.follow_redirects,
        )
        try:
            response = await self._transport.request(request)
        except TransportError as error:
            self._fail(call, headers, error, started)
        except asyncio.CancelledError:
            self._admission.abandoned()
            raise
        return self._judge(call, headers, response, started)

    async def _admitted(self, call: Call, idempotency_key: str, attempt: int) -> dict[str, str]:
        """The headers of a request that may leave now."""
        await self._admission.wait(call)
        headers = await self._headers_for(call, idempotency_key, attempt)
        self._admission.enter(call, headers)
        return headers

    async def _headers_for(self, call: Call, idempotency_key: str, attempt: int) -> dict[str, str]:
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

    def _fail(
        self, call: Call, headers: Mapping[str, str], error: TransportError, started: float
    ) -> NoReturn:
        info = call.describe(headers)
        self._admission.failed(started, redact_text(str(error)))
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
        self, call: Call, headers: Mapping[str, str], response: HttpResponse, started: float
    ) -> HttpResponse:
        """Return a good answer, raise for any other; everyone learns what it means for them."""
        duration = time.monotonic() - started
        self.bus.emit(
            events.HTTP_STOP, duration, method=call.method, path=call.path, status=response.status
        )
        log_deprecation(response)
        if response.status < 300 or (response.status < 400 and not call.follow_redirects):
            self._admission.answered(call, response.status, response.headers)
            self._empty_400_credits = min(EMPTY_400_CREDITS, self._empty_400_credits + 1)
            self.billing.over()
            return response
        if self._is_from_a_proxy(response):
            self._admission.abandoned()
            raise APIConnectionError(
                call.describe(headers), "Connection error: a proxy answered 400 with no body."
            )
        self._admission.answered(call, response.status, response.headers)
        raise error_of(
            response, call.describe(headers), self.config, has_no_key=self.tokens.is_missing
        )

    def _is_from_a_proxy(self, response: HttpResponse) -> bool:
        """Whether a bare 400 is the way a proxy says that a connection broke."""
        bare = response.status == 400 and not response.content
        if not bare or limits.HEADER_SHOULD_RETRY in response.headers:
            return False
        known, self._empty_400_credits = (
            self._empty_400_credits,
            max(0, self._empty_400_credits - 1),
        )
        return known > 0

    # ---- small parts

    async def _sign_of_life(self) -> HttpResponse:
        """Any answer will do; no limiter, breaker or event hears of it."""
        url = self._origin + routes.HEALTH
        request = HttpRequest("GET", url, self._headers, timeout=limits.HEARTBEAT_TIMEOUT)
        return await self._transport.request(request)

    def _new_key(self) -> str:
        return f"{self._key_prefix}-{next(self._key_numbers)}"

    def url(self, path: str, params: Mapping[str, Any] | None = None) -> str:
        """The whole address of a path."""
        query = {key: value for key, value in (params or {}).items() if value is not None}
        return f"{self._origin}{path}" + (f"?{urlencode(query)}" if query else "")

    def _report_retry(
        self, layer: str, call: Call, error: APIError, attempt: int, delay: float
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
        if isinstance(error, RateLimitError):
            self._put_off.again(call.began, str(error))

    async def exchange_token(self, credential: str) -> str:
        """Trade a raw credential for a JWT."""
        response = await self.send(
            "POST", routes.AUTH_TOKEN, call_policies.TOKEN, body=b"{}", credential=credential
        )
        token = json.loads(response.content).get("jwt")
        if not isinstance(token, str) or not token:
            raise TinkerError("The server answered the token exchange without a token.")
        return token


def _fixed_headers(config: Config) -> dict[str, str]:
    return {
        "User-Agent": f"tinkex/{package_version()} Python/{platform.python_version()}",
        "X-Stainless-Package-Version": limits.PROTOCOL_VERSION,
        **config.headers,
    }
