"""Waiting for many samples with one request: the batched ``retrieve_futures`` poll.

One loop per sampler and clone, alive only while something is awaited or still to be acknowledged.
It says when a result is ready; fetching the result stays with the single poller.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict

from tinkex.client.api import call_policies
from tinkex.client.api.api import Api
from tinkex.client.api.retry import is_retryable, server_says
from tinkex.client.errors import (
    APIConnectionError,
    APIStatusError,
    CircuitOpenError,
    FutureRetrievalError,
)
from tinkex.types import FutureFinished, FuturesRetrieveResponse
from tinkex.wire import routes

SINGLE_POLLS = 32
"""Samples of one sampler that are asked for one by one: a batched poll only tells that a result is
there, and asking for it then is one more round trip. Beyond these, connections are spared."""

# Completions may arrive before the reply that names the request; this many are remembered.
EARLY_COMPLETIONS = 10_000

logger = logging.getLogger("tinkex")


class CompletionPoller:
    """Completions of one sampler. Used on the SDK's loop only."""

    def __init__(self, api: Api, sampling_session_id: str, clone_id: int) -> None:
        self._api = api
        self._target = {
            "type": "sampling_session",
            "sampling_session_id": sampling_session_id,
            "cloned_sampler_id": clone_id,
        }
        self._cursor = 0
        self._waiting: dict[str, asyncio.Future[int | None]] = {}
        self._early: OrderedDict[str, int | None] = OrderedDict()
        self._acknowledgements: list[str] = []
        self._loop: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._bad_requests = 0

    async def completion(self, request_id: str) -> int | None:
        """Return when the request has finished or failed; the size of its result if announced."""
        if self._failure is not None:
            raise self._failure
        if request_id in self._early:
            return self._early.pop(request_id)
        place: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = place
        self._ensure_running()
        try:
            return await place
        finally:
            self._waiting.pop(request_id, None)

    def acknowledge(self, request_id: str) -> None:
        """The result was fetched: the server may drop it."""
        self._acknowledgements.append(request_id)
        self._ensure_running()

    async def aclose(self) -> None:
        if self._loop is not None and not self._loop.done():
            self._loop.cancel()
            await asyncio.wait([self._loop])

    def _ensure_running(self) -> None:
        if self._failure is None and (self._loop is None or self._loop.done()):
            self._loop = asyncio.create_task(self._run(), name="tinkex-completions")

    async def _run(self) -> None:
        try:
            while self._waiting or self._acknowledgements:
                await self._poll()
        except CircuitOpenError as error:
            self._fail_waiting(error)  # whoever comes when the circuit is closed starts anew
        except Exception as error:
            logger.warning("batched polling stopped: %s", error)
            self._failure = error
            self._fail_waiting(error)

    def _fail_waiting(self, error: Exception) -> None:
        for place in self._waiting.values():
            if not place.done():
                place.set_exception(error)

    async def _poll(self) -> None:
        acknowledged = tuple(self._acknowledgements)
        body = json.dumps(
            {
                "target": self._target,
                "prev_cursor": self._cursor,
                "retrieved_request_ids": acknowledged,
            },
            separators=(",", ":"),
        ).encode()
        try:
            answer = await self._api.post(
                routes.RETRIEVE_FUTURES, body, FuturesRetrieveResponse, call_policies.POLL
            )
        except CircuitOpenError:
            raise
        except (APIStatusError, APIConnectionError) as error:
            await self._after(error)
            return
        self._bad_requests = 0
        del self._acknowledgements[: len(acknowledged)]
        self._cursor = answer.cursor
        for item in answer.completions:
            size = (
                item.response_payload_uncompressed_size
                if isinstance(item, FutureFinished)
                else None
            )
            self._complete(item.request_id, size)

    def _complete(self, request_id: str, size: int | None) -> None:
        place = self._waiting.get(request_id)
        if place is None:
            self._early[request_id] = size
            if len(self._early) > EARLY_COMPLETIONS:
                self._early.popitem(last=False)
        elif not place.done():
            place.set_result(size)

    async def _after(self, error: APIStatusError | APIConnectionError) -> None:
        timings = self._api.config.timings
        status = error.status_code if isinstance(error, APIStatusError) else None
        forbidden = isinstance(error, APIStatusError) and server_says(error) is False
        if status == 402 and not forbidden and self._api.billing.goes_on(str(error)):
            await asyncio.sleep(timings.billing_delay)
            return
        if status == 400 and not forbidden and self._bad_requests < timings.poll_bad_requests:
            self._bad_requests += 1
        elif not is_retryable(error):
            raise FutureRetrievalError(
                f"The server refused the batched poll: {error}", "", status
            ) from error
        await self._api.pause(error.retry_after or timings.batch_poll_delay)
