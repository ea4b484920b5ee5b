"""The operations of one training run on the wire: numbered, submitted in turn, polled, combined.

Knows how a batch becomes several requests and one result again. Knows nothing of the public
method signatures above it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel

from tinkex.client.api import call_policies
from tinkex.client.api.call_policies import Purpose
from tinkex.client.errors import APIStatusError
from tinkex.client.events import bus as events
from tinkex.client.session.polling import ResultKind
from tinkex.client.settings.queue_state import QueueStateObserver
from tinkex.client.training.measurements import Measurements, Place
from tinkex.client.training.turnstile import Turnstile
from tinkex.types import Datum, ForwardBackwardOutput, OptimStepResponse, UntypedAPIFuture
from tinkex.wire import routes
from tinkex.wire.chunking import chunk_data
from tinkex.wire.compression import compress
from tinkex.wire.json import (
    encode_forward_backward_json,
    encode_request,
    forward_backward_output_from_json,
)
from tinkex.wire.limits import FIRST_TRAINING_SEQ_ID, JSON_TYPE, PROTOBUF_TYPE, ZSTD_ENCODING
from tinkex.wire.protobuf import decode_forward_backward_output, encode_forward_backward
from tinkex.wire.reducers import reduce_metrics

if TYPE_CHECKING:
    from tinkex.client.session.holder import InternalClientHolder

T = TypeVar("T")
U = TypeVar("U")
M = TypeVar("M", bound=BaseModel)
Step = TypeVar("Step", ForwardBackwardOutput, OptimStepResponse)

UNSUPPORTED_MEDIA_TYPE = 415


def json_kind(request_type: str, model: type[M]) -> ResultKind[M]:
    """A result that is always JSON and validated by a type."""
    return ResultKind(request_type, model.model_validate)


FORWARD = ResultKind("Forward", forward_backward_output_from_json, decode_forward_backward_output)
FORWARD_BACKWARD = ResultKind(
    "ForwardBackward", forward_backward_output_from_json, decode_forward_backward_output
)


class TrainingRun:
    """One model on the server, seen from the client that trains it."""

    def __init__(
        self, holder: InternalClientHolder, model_id: str, observer: QueueStateObserver
    ) -> None:
        self.model_id = model_id
        self._holder = holder
        self._observer = observer
        self._turns = Turnstile(FIRST_TRAINING_SEQ_ID)
        self._speaks_protobuf = True
        self._measurements = Measurements(self._measured)

    # ---- single requests

    def operation(
        self,
        path: str,
        request: Callable[[int], BaseModel],
        kind: ResultKind[T],
        purpose: Purpose = call_policies.TRAINING,
    ) -> Coroutine[Any, Any, T]:
        """Draw a number now; the coroutine submits in turn and waits for the result."""
        numbers = self._turns.draw()
        return self._operation(path, request, kind, purpose, numbers)

    def optim_step(
        self, request: Callable[[int], BaseModel], learning_rate: float | None
    ) -> Coroutine[Any, Any, OptimStepResponse]:
        """An operation whose metrics are told of, with the rate it was asked for."""
        rate = {} if learning_rate is None else {"learning_rate": learning_rate}
        place = self._measurements.expect("optim_step", rate)
        kind = json_kind("OptimStep", OptimStepResponse)
        return self._told(place, self.operation(routes.OPTIM_STEP, request, kind))

    async def _told(self, place: Place, work: Coroutine[Any, Any, Step]) -> Step:
        """What comes of `work`, its metrics told in their turn."""
        metrics: Mapping[str, float] | None = None
        try:
            result = await work
            metrics = result.metrics or {}
            return result
        finally:
            self._measurements.fill(place, metrics)

    def _measured(self, kind: str, metrics: Mapping[str, float]) -> None:
        self._holder.api.bus.emit(
            events.TRAINING_MEASURED, model_id=self.model_id, kind=kind, metrics=metrics
        )

    async def _operation(
        self,
        path: str,
        request: Callable[[int], BaseModel],
        kind: ResultKind[T],
        purpose: Purpose,
        numbers: range,
    ) -> T:
        async with self._turns.turn(numbers):
            started = time.monotonic()
            body = encode_request(request(numbers.start))
            promise = await self._holder.api.post(path, body, UntypedAPIFuture, purpose)
            self._report(path, numbers.start)
        roundtrip = time.monotonic() - started
        return await self._poll(promise, kind, roundtrip)

    def _poll(
        self, promise: UntypedAPIFuture, kind: ResultKind[T], roundtrip: float
    ) -> Coroutine[Any, Any, T]:
        return self._holder.poller.result(
            promise.request_id, kind, observer=self._observer, roundtrip=roundtrip
        )

    def _report(self, path: str, seq_id: int) -> None:
        self._holder.api.bus.emit(
            events.TRAINING_SUBMITTED, path=path, model_id=self.model_id, seq_id=seq_id
        )

    # ---- batches

    def forward_backward(
        self,
        data: Sequence[Datum],
        loss_fn: str,
        config: Mapping[str, float | str] | None,
        *,
        forward_only: bool,
        finish: Callable[[ForwardBackwardOutput], ForwardBackwardOutput] | None = None,
    ) -> Coroutine[Any, Any, ForwardBackwardOutput]:
        """Cut the batch and draw its numbers now; the coroutine does the rest. What `finish` makes
        of the result is what counts, for who listens too."""
        flags = self._holder.flags
        chunks = list(
            chunk_data(
                data,
                max_datums=flags.fwdbwd_max_chunk_len,
                max_bytes=flags.fwdbwd_max_chunk_bytes_count,
            )
        )
        batch = _Batch(loss_fn, dict(config) if config else None, forward_only)
        work = self._forward_backward(chunks, batch, self._turns.draw(len(chunks)))
        if finish is not None:
            work = then(work, finish)
        if forward_only:
            return work
        return self._told(self._measurements.expect("forward_backward"), work)

    async def _forward_backward(
        self, chunks: list[tuple[list[Datum], int]], batch: _Batch, numbers: range
    ) -> ForwardBackwardOutput:
        polls: list[asyncio.Task[ForwardBackwardOutput] | None] = [None] * len(chunks)

        async def submit(index: int) -> None:
            data, size = chunks[index]
            chunks[index] = ([], 0)  # the caller may drop its data while we wait for results
            polls[index] = await self._submit_chunk(data, size, batch, numbers[index])

        try:
            async with self._turns.turn(numbers):
                await self._submit_in_order(submit, len(chunks))
            tasks = [task for task in polls if task is not None]
            return combine(await asyncio.gather(*tasks))
        finally:
            await _cancel([task for task in polls if task is not None])

    async def _submit_in_order(
        self, submit: Callable[[int], Coroutine[Any, Any, None]], count: int
    ) -> None:
        """The first chunk goes last, so that the server starts when it has the whole batch."""
        if count == 1 or not self._holder.flags.parallel_fwdbwd_chunks:
            for index in range(count):
                await submit(index)
            return
        later = [asyncio.create_task(submit(index)) for index in range(1, count)]
        try:
            await asyncio.gather(*later)
        finally:
            await _cancel(later)
        await submit(0)

    async def _submit_chunk(
        self, data: list[Datum], size: int, batch: _Batch, seq_id: int
    ) -> asyncio.Task[ForwardBackwardOutput]:
        started = time.monotonic()
        async with self._holder.training_bytes.holding(size):
            promise = await self._send_chunk(data, batch, seq_id)
        self._report(routes.FORWARD_BACKWARD, seq_id)
        roundtrip = time.monotonic() - started
        return asyncio.create_task(self._poll(promise, batch.kind, roundtrip))

    async def _send_chunk(self, data: list[Datum], batch: _Batch, seq_id: int) -> UntypedAPIFuture:
        if self._speaks_protobuf:
            try:
                return await self._send_protobuf(data, batch, seq_id)
            except APIStatusError as error:
                if error.status_code != UNSUPPORTED_MEDIA_TYPE:
                    raise
                self._speaks_protobuf = False
        return await self._send_json(data, batch, seq_id)

    async def _send_protobuf(
        self, data: list[Datum], batch: _Batch, seq_id: int
    ) -> UntypedAPIFuture:
        compressed = self._holder.flags.proto_compress_fwdbwd

        def encode() -> bytes:
            body = encode_forward_backward(
                self.model_id, seq_id, data, batch.loss_fn, batch.config, batch.forward_only
            )
            return compress(body) if compressed else body

        return await self._post_chunk(
            await self._holder.encode(encode),
            PROTOBUF_TYPE,
            {"Content-Encoding": ZSTD_ENCODING} if compressed else {},
        )

    async def _send_json(self, data: list[Datum], batch: _Batch, seq_id: int) -> UntypedAPIFuture:
        body = await self._holder.encode(
            encode_forward_backward_json,
            self.model_id,
            seq_id,
            data,
            batch.loss_fn,
            batch.config,
            batch.forward_only,
        )
        return await self._post_chunk(body, JSON_TYPE, {})

    async def _post_chunk(
        self, body: bytes, content_type: str, headers: Mapping[str, str]
    ) -> UntypedAPIFuture:
        api = self._holder.api
        response = await api.send(
            "POST",
            routes.FORWARD_BACKWARD,
            call_policies.TRAINING,
            body=body,
            content_type=content_type,
            headers=headers,
        )
        return api.decode(response, UntypedAPIFuture, routes.FORWARD_BACKWARD)


class _Batch:
    """What all chunks of one call have in common."""

    __slots__ = ("config", "forward_only", "loss_fn")

    def __init__(
        self, loss_fn: str, config: dict[str, float | str] | None, forward_only: bool
    ) -> None:
        self.loss_fn = loss_fn
        self.config = config
        self.forward_only = forward_only

    @property
    def kind(self) -> ResultKind[ForwardBackwardOutput]:
        return FORWARD if self.forward_only else FORWARD_BACKWARD


def combine(results: Sequence[ForwardBackwardOutput]) -> ForwardBackwardOutput:
    """One result for all chunks: outputs in order, metrics reduced by their names."""
    return ForwardBackwardOutput(
        loss_fn_output_type=results[0].loss_fn_output_type,
        loss_fn_outputs=[output for result in results for output in result.loss_fn_outputs],
        metrics=reduce_metrics(
            [result.metrics for result in results],
            [len(result.loss_fn_outputs) for result in results],
        ),
    )


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)


async def then(work: Coroutine[Any, Any, T], function: Callable[[T], U]) -> U:
    """What a function makes of what comes."""
    return function(await work)
