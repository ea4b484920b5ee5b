"""The longest a command may take: one deadline for everything it waits for, `--timeout` from start.

A person's thinking time does not count. Knows nothing of what is waited for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class Deadline:
    """So many seconds from now on; None is for ever."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    def remaining(self) -> float | None:
        """The seconds left, 0 when they are over; None when there is no end."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time that does not count."""
        began = time.monotonic()
        try:
            yield
        finally:
            if self._end is not None:
                self._end += time.monotonic() - began

    def run(self, work: Callable[[], T]) -> T:
        """The result of `work`, which blocks; TimeoutError when it takes too long.

        It then goes on alone in a daemon thread: the process can end without it.
        """
        if self._end is None:
            return work()
        outcome: Future[T] = Future()
        threading.Thread(target=_work, args=(work, outcome), daemon=True).start()
        return outcome.result(self.remaining())

    def each(self, items: Iterable[T]) -> Iterator[T]:
        """The items of an iterable whose next one may be long in coming."""
        if self._end is None:
            yield from items
            return
        iterator, over = iter(items), object()
        while (item := self.run(lambda: next(iterator, over))) is not over:
            yield item  # type: ignore[misc]  # not `over`, says the loop


def _work(work: Callable[[], T], outcome: Future[T]) -> None:
    try:
        outcome.set_result(work())
    except BaseException as error:
        outcome.set_exception(error)
