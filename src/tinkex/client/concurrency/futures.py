"""Results that are not there yet, usable from sync code, from any event loop and from threads."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Generator
from concurrent.futures import Future as ConcurrentFuture
from typing import Any, Generic, TypeVar

from tinkex.client.concurrency.running_loop import refuse_on_sdk_loop, warn_if_blocking

T = TypeVar("T")


class APIFuture(ABC, Generic[T]):
    """The result of an operation that was already submitted.

    Block with ``result()``, or ``await`` it. A timeout only ends the waiting: the operation goes
    on and can be waited for again.
    """

    @abstractmethod
    async def result_async(self, timeout: float | None = None) -> T:
        """Wait without blocking the event loop. TimeoutError after ``timeout`` seconds."""

    @abstractmethod
    def result(self, timeout: float | None = None) -> T:
        """Block until the result is there. TimeoutError after ``timeout`` seconds."""

    def __await__(self) -> Generator[Any, Any, T]:
        return self.result_async().__await__()


class ResultFuture(ConcurrentFuture[T]):
    """A ``concurrent.futures.Future`` that can also be awaited, from any event loop.

    What ``sample``, ``compute_logprobs`` and the REST calls return. Cancelling the task that
    awaits it cancels the work, as cancelling the future does.
    """

    def __await__(self) -> Generator[Any, Any, T]:
        return asyncio.wrap_future(self).__await__()

    def result(self, timeout: float | None = None) -> T:
        """Block until the result is there. TimeoutError after ``timeout`` seconds."""
        if not self.done():
            refuse_on_sdk_loop("result")
            warn_if_blocking("result")
        return super().result(timeout)

    def result_here(self) -> T:
        """Like ``result``, for callers that have warned already."""
        return super().result()


class AwaitableConcurrentFuture(APIFuture[T]):
    """A ``concurrent.futures.Future`` that can also be awaited."""

    def __init__(self, future: ConcurrentFuture[T]) -> None:
        self._future = future

    def result(self, timeout: float | None = None) -> T:
        return self._future.result(timeout)

    async def result_async(self, timeout: float | None = None) -> T:
        # Shielded: giving up the wait must not take back an operation that others depend on.
        waiting = asyncio.shield(asyncio.wrap_future(self._future))
        return await asyncio.wait_for(waiting, timeout)

    def future(self) -> ConcurrentFuture[T]:
        """The wrapped future."""
        return self._future
