"""Tokens of one sample as they are generated, from servers of this project.

A stream can be read with ``for`` or with ``async for``; leaving either early cancels the sample.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinkex.client.api import call_policies
from tinkex.client.concurrency.futures import ResultFuture
from tinkex.client.errors import (
    FutureRetrievalError,
    NotFoundError,
    RequestFailedError,
    TinkerError,
)
from tinkex.client.sampling.call import SampleCall
from tinkex.client.session.polling import error_category
from tinkex.types import SampleResponse
from tinkex.wire.protobuf import decode_sample_response
from tinkex.wire.routes import ASAMPLE_STREAM

if TYPE_CHECKING:
    from tinkex.client.sampling.client import SamplingClient


@dataclass(frozen=True, slots=True)
class StreamedTokens:
    """Some more tokens of sequence ``index``. ``stop_reason`` is set on the last of a sequence."""

    index: int
    tokens: list[int]
    logprobs: list[float]
    stop_reason: str | None = None


class SampleStream:
    """Iterate once, either way. ``response`` holds the whole result when the stream has ended."""

    def __init__(self, client: SamplingClient, call: SampleCall) -> None:
        self._client = client
        self._pieces = self._read(call)
        self._reading = asyncio.Lock()
        self._waited_for: ResultFuture[StreamedTokens | None] | None = None
        self.response: SampleResponse | None = None

    # ---- for

    def __iter__(self) -> Iterator[StreamedTokens]:
        try:
            while (piece := self._start_next().result_here()) is not None:
                yield piece
        finally:
            self._start_close().result_here()

    # ---- async for

    async def __aiter__(self) -> AsyncIterator[StreamedTokens]:
        try:
            while (piece := await self._start_next()) is not None:
                yield piece
        finally:
            await self._start_close()

    def _start_next(self) -> ResultFuture[StreamedTokens | None]:
        self._waited_for = self._client._submit(self._next())
        return self._waited_for

    def _start_close(self) -> ResultFuture[None]:
        if self._waited_for is not None:
            self._waited_for.cancel()  # whoever waited for it was interrupted
        return self._client._submit(self._close())

    # ---- on the SDK's loop

    async def _next(self) -> StreamedTokens | None:
        async with self._reading:
            return await anext(self._pieces, None)

    async def _close(self) -> None:
        async with self._reading:  # a read that was cancelled needs a moment to end
            await self._pieces.aclose()

    async def _read(self, call: SampleCall) -> AsyncGenerator[StreamedTokens, None]:
        body = await self._client._stream_body(call)
        ids: list[str] = []
        request_id = ""
        try:
            async for line in self._client.holder.api.stream_lines(
                ASAMPLE_STREAM, body, call_policies.SAMPLE
            ):
                event = _event(line)
                if event["type"] == "start":
                    ids, request_id = event["sample_sequence_ids"], event["request_id"]
                elif event["type"] == "tokens":
                    yield StreamedTokens(event["index"], event["tokens"], event["logprobs"])
                elif event["type"] == "failed":
                    category = error_category(event.get("category"))
                    raise RequestFailedError(str(event["error"]), request_id, category)
                elif event["type"] == "done":
                    self.response = decode_sample_response(base64.b64decode(event["result"]), ids)
                    for index, sequence in enumerate(self.response.sequences):
                        yield StreamedTokens(index, [], [], sequence.stop_reason)
                    return
        except NotFoundError as error:
            raise TinkerError("This server does not stream samples: use sample().") from error
        raise FutureRetrievalError("The stream ended before the sample did.", request_id)


def _event(line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line)
        if isinstance(event, dict) and isinstance(event.get("type"), str):
            return event
    except ValueError:
        pass
    raise FutureRetrievalError(f"The stream holds a line that is no event ({len(line)} bytes).", "")
