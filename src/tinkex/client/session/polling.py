"""Fetching the result of an accepted request by long-polling ``retrieve_future``.

Keeps asking through pending answers, server errors and lost connections; stops for a result, a
failure the server reports, a promise it lost, or an answer that asking again cannot improve.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tinkex.client.api import call_policies
from tinkex.client.api.api import Api
from tinkex.client.api.retry import backoff, is_retryable, jittered, server_says
from tinkex.client.concurrency.budgets import ByteBudget
from tinkex.client.errors import (
    APIConnectionError,
    APIStatusError,
    CircuitOpenError,
    FutureRetrievalError,
    RequestFailedError,
    RetryableException,
)
from tinkex.client.events import bus as events
from tinkex.client.http import HttpResponse
from tinkex.client.settings.queue_state import QueueState, QueueStateObserver
from tinkex.types import RequestErrorCategory
from tinkex.wire import limits, routes
from tinkex.wire.limits import JSON_TYPE, METADATA_STATUS, PENDING_TYPE, PROTOBUF_TYPE

T = TypeVar("T")

logger = logging.getLogger("tinkex")


@dataclass(frozen=True, slots=True)
class ResultKind(Generic[T]):
    """What is being waited for, and how to read it. No ``protobuf`` means it is always JSON."""

    request_type: str
    from_json: Callable[[Any], T]
    from_protobuf: Callable[[bytes], T] | None = None

    @property
    def accept(self) -> str:
        return PROTOBUF_TYPE if self.from_protobuf is not None else JSON_TYPE


@dataclass(slots=True)
class _Progress:
    """How the polls of one future have been going."""

    iteration: int = 0
    failures: int = 0
    bad_answers: int = 0
    conflict_since: float | None = None


class _Pending(Exception):
    """The result is not there yet: ask again now."""


class _Announced(Exception):
    """The result is there and this large."""

    def __init__(self, size: int) -> None:
        self.size = size


class _Unreadable(Exception):
    """The answer makes no sense; it may have been damaged on the way."""


class Poller:
    """Waits for results on behalf of one client."""

    def __init__(self, api: Api, inflight: ByteBudget) -> None:
        self._api = api
        self._inflight = inflight

    async def result(
        self,
        request_id: str,
        kind: ResultKind[T],
        *,
        observer: QueueStateObserver | None = None,
        roundtrip: float | None = None,
        announced_size: int | None = None,
    ) -> T:
        """The result, once there is one.

        Raises ``RequestFailedError`` when the server reports a failure, ``RetryableException``
        when it lost the promise, ``FutureRetrievalError`` when the result cannot be had.
        ``announced_size`` skips the question how large the result is.
        """
        started = time.monotonic()
        self._api.bus.emit(events.FUTURE_CREATED, request_id=request_id, type=kind.request_type)
        wait = _Wait(self._api, request_id, kind, observer, roundtrip)
        try:
            result = await self._fetch(wait, announced_size)
        except asyncio.CancelledError:
            self._api.bus.emit(events.FUTURE_CANCELLED, request_id=request_id)
            raise
        except RetryableException:
            self._api.bus.emit(events.FUTURE_EXPIRED, request_id=request_id)
            raise
        except Exception as error:
            took = time.monotonic() - started
            name = type(error).__name__
            self._api.bus.emit(events.FUTURE_FAILED, took, request_id=request_id, error=name)
            raise
        took = time.monotonic() - started
        self._api.bus.emit(
            events.FUTURE_COMPLETED, took, request_id=request_id, type=kind.request_type
        )
        return result

    async def _fetch(self, wait: _Wait[T], announced_size: int | None) -> T:
        if not announced_size:
            try:
                return await wait.until_answered(metadata_only=True)
            except _Announced as announced:
                announced_size = announced.size
        async with self._inflight.holding(announced_size):
            try:
                return await wait.until_answered(metadata_only=False)
            except _Announced:
                raise FutureRetrievalError(
                    "The server keeps announcing the result instead of sending it.",
                    wait.request_id,
                ) from None


class _Wait(Generic[T]):
    """One future being polled."""

    def __init__(
        self,
        api: Api,
        request_id: str,
        kind: ResultKind[T],
        observer: QueueStateObserver | None,
        roundtrip: float | None,
    ) -> None:
        self.request_id = request_id
        self._api = api
        self._kind = kind
        self._observer = observer
        self._roundtrip = roundtrip
        self._progress = _Progress()

    async def until_answered(self, *, metadata_only: bool) -> T:
        body = json.dumps(
            {"request_id": self.request_id, "allow_metadata_only": metadata_only},
            separators=(",", ":"),
        ).encode()
        while True:
            try:
                response = await self._ask(body)
                result = self._read(response)
            except _Pending:
                self._progress.failures = 0
            except _Unreadable as error:
                self._count_bad_answer(str(error), None)
            except APIStatusError as error:
                await self._after_status(error)
            except CircuitOpenError:
                raise
            except APIConnectionError as error:
                await self._pause(error.retry_after)
            else:
                return result

    async def _ask(self, body: bytes) -> HttpResponse:
        headers = {
            limits.HEADER_REQUEST_TYPE: self._kind.request_type,
            limits.HEADER_REQUEST_ITERATION: str(self._progress.iteration),
            "X-Stainless-Raw-Response": "raw",
        }
        if self._progress.iteration == 0 and self._roundtrip is not None:
            headers[limits.HEADER_PROMISE_ROUNDTRIP] = str(self._roundtrip)
        self._progress.iteration += 1
        return await self._api.send(
            "POST",
            routes.RETRIEVE_FUTURE,
            call_policies.POLL,
            body=body,
            accept=self._kind.accept,
            headers=headers,
        )

    # ---- a good status

    def _read(self, response: HttpResponse) -> T:
        if PROTOBUF_TYPE in response.headers.get("content-type", ""):
            return self._read_protobuf(response.content)
        try:
            value = json.loads(response.content)
        except ValueError:
            raise _Unreadable(f"not JSON ({len(response.content)} bytes)") from None
        if isinstance(value, dict):
            self._raise_unless_final(value)
        try:
            return self._kind.from_json(value)
        except (ValueError, TypeError, KeyError) as error:
            raise _Unreadable(f"not a {self._kind.request_type} result: {error}") from error

    def _read_protobuf(self, content: bytes) -> T:
        if self._kind.from_protobuf is None:
            raise FutureRetrievalError(
                f"A {self._kind.request_type} result came back as protobuf, which it never is.",
                self.request_id,
            )
        try:
            return self._kind.from_protobuf(content)
        except Exception as error:  # whatever a damaged message makes the decoder raise
            raise _Unreadable(
                f"protobuf of {len(content)} bytes cannot be read: {error}"
            ) from error

    def _raise_unless_final(self, value: dict[str, Any]) -> None:
        if value.get("type") == PENDING_TYPE:
            self._observe(value)
            raise _Pending
        if value.get("status") == METADATA_STATUS:
            raise _Announced(int(value.get("response_payload_size") or 0))
        if "error" in value:
            raise RequestFailedError(
                str(value["error"]), self.request_id, error_category(value.get("category"))
            )

    def _observe(self, value: dict[str, Any]) -> None:
        if self._observer is not None and "queue_state" in value:
            state = QueueState.parse(value["queue_state"])
            self._observer.on_queue_state_change(state, value.get("queue_state_reason"))

    # ---- a bad status

    async def _after_status(self, error: APIStatusError) -> None:
        """Wait as the status demands, or raise when asking again is pointless."""
        status = error.status_code
        if server_says(error) is False and status != 410:
            raise self._gone(str(error), status) from error
        if status == 408:
            self._progress.failures = 0
            if isinstance(error.body, dict):
                self._progress.bad_answers = 0
                self._observe(error.body)
        elif status == 410:
            raise RetryableException(
                f"The server no longer has request {self.request_id}: submit it again.",
                self.request_id,
            ) from error
        elif status == 402 and self._api.billing.goes_on(str(error)):
            await asyncio.sleep(self._api.config.timings.billing_delay)
        elif status == 400:
            self._count_bad_answer(str(error), error)
        elif self._may_pass(error):
            await self._pause(error.retry_after, immediate_first=status >= 500)
        else:
            raise self._gone(str(error), status) from error

    def _may_pass(self, error: APIStatusError) -> bool:
        if error.status_code == 409 and server_says(error) is None:
            now = time.monotonic()
            self._progress.conflict_since = self._progress.conflict_since or now
            return now - self._progress.conflict_since < self._api.config.timings.outer_window
        return is_retryable(error)

    async def _pause(self, asked: float | None, *, immediate_first: bool = False) -> None:
        timings = self._api.config.timings
        attempt = self._progress.failures - (1 if immediate_first else 0)
        self._progress.failures += 1
        if asked is not None:
            await asyncio.sleep(asked)
        elif attempt >= 0:
            delay = backoff(attempt, timings.poll_delay_first, timings.poll_delay_max)
            await self._api.pause(jittered(delay))

    def _count_bad_answer(self, what: str, error: APIStatusError | None) -> None:
        self._progress.bad_answers += 1
        if self._progress.bad_answers > self._api.config.timings.poll_bad_requests:
            raise self._gone(what, None if error is None else error.status_code) from error

    def _gone(self, what: str, status: int | None) -> FutureRetrievalError:
        return FutureRetrievalError(
            f"The result of {self._kind.request_type} request {self.request_id} cannot be "
            f"retrieved: {what}",
            self.request_id,
            status,
        )


def error_category(text: object) -> RequestErrorCategory:
    """The category the server named; unknown for anything else."""
    try:
        return RequestErrorCategory(str(text).lower())
    except ValueError:
        return RequestErrorCategory.Unknown
