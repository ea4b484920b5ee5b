"""Threads shared fairly: tenants take turns, and no tenant ever holds all threads.

However much heavy work one tenant submits, another tenant's next piece starts at once or in its
turn. Used from the event loop alone, so nothing is locked.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from tinkex.server.refusals import Busy

T = TypeVar("T")

_Job = tuple[Callable[[], Any], asyncio.Future[Any]]


class FairThreads:
    """A number of threads. One tenant has at most `most` of them, and `waiting` pieces of work that
    wait; None if something else bounds these."""

    def __init__(self, threads: int, name: str, *, most: int, waiting: int | None = None) -> None:
        self._pool = ThreadPoolExecutor(threads, name)
        self._free = threads
        self._most = most
        self._most_waiting = math.inf if waiting is None else waiting
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[_Job]] = {}
        """Waiting work by tenant; the tenant whose turn is next is first."""

    async def run(self, tenant: str, work: Callable[[], T]) -> T:
        """The result of `work`, done in a thread when it is the tenant's turn."""
        if len(self._waiting.get(tenant, ())) >= self._most_waiting:
            raise Busy(
                f"{self._most_waiting} requests of this kind wait for this key: send fewer at once",
                1.0,
            )
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append((work, done))
        self._begin()
        return await done

    def close(self, wait: bool = False) -> None:
        """Start nothing more. With `wait`, return when running work has ended."""
        self._waiting.clear()
        self._pool.shutdown(wait=wait, cancel_futures=True)

    def _begin(self) -> None:
        """Start the work that may start."""
        while self._free and (tenant := self._next_tenant()) is not None:
            work, done = self._take(tenant)
            if done.cancelled():
                continue  # its client went away
            self._free -= 1
            self._running[tenant] += 1
            running = asyncio.get_running_loop().run_in_executor(self._pool, work)
            running.add_done_callback(partial(self._ended, tenant, done))

    def _next_tenant(self) -> str | None:
        return next((each for each in self._waiting if self._running[each] < self._most), None)

    def _take(self, tenant: str) -> _Job:
        jobs = self._waiting.pop(tenant)
        job = jobs.popleft()
        if jobs:
            self._waiting[tenant] = jobs  # behind all others
        return job

    def _ended(self, tenant: str, done: asyncio.Future[Any], running: asyncio.Future[Any]) -> None:
        self._free += 1
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]
        if running.cancelled():
            done.cancel()
        elif (error := running.exception()) is None:
            _settle(done, running.result())
        elif not done.done():
            done.set_exception(error)
        self._begin()


def _settle(done: asyncio.Future[Any], value: Any) -> None:
    if not done.done():
        done.set_result(value)
