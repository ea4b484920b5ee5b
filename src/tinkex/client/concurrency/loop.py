"""The SDK's event loop: one daemon thread per process, alive while something holds a lease.

Every network call runs here, whatever thread or loop the caller is on. A forked child starts with
no loop and gets its own on first use. Knows nothing about requests.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar
from weakref import WeakMethod

from tinkex.client.concurrency.futures import ResultFuture
from tinkex.client.concurrency.running_loop import SDK_THREAD

T = TypeVar("T")

ENCODER_THREADS = 2
EXIT_TIMEOUT = 5.0


class LoopThread:
    """A running event loop on a thread of its own, with a small pool for CPU-heavy encoding."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.encoders = ThreadPoolExecutor(ENCODER_THREADS, thread_name_prefix="tinkex-encode")
        self.leases = 0
        self._stopping = False
        self.thread = threading.Thread(target=self._run, name=SDK_THREAD, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self._finish_tasks()
            self.encoders.shutdown()
            self.loop.close()

    def _finish_tasks(self) -> None:
        # Ending a task may start another, for example to tell the server about it.
        while tasks := asyncio.all_tasks(self.loop):
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())

    def stop(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        self.loop.call_soon_threadsafe(self.loop.stop)


class Lease:
    """Keeps the loop thread alive until released; releasing twice is harmless."""

    def __init__(self, owner: LoopThread) -> None:
        self._owner = owner
        self._pid = os.getpid()
        self._released = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._owner.loop

    @property
    def usable(self) -> bool:
        """False after release, and in a child process that inherited this object."""
        return not self._released and self._pid == os.getpid()

    @property
    def on_loop(self) -> bool:
        """Whether the caller is on the loop's own thread, where blocking would deadlock."""
        return threading.current_thread() is self._owner.thread

    def submit(self, work: Coroutine[Any, Any, T]) -> ResultFuture[T]:
        """Run a coroutine on the loop from any thread."""
        if not self.usable:
            work.close()
            raise RuntimeError("the SDK's event loop was used after its client was closed")
        future: ResultFuture[T] = ResultFuture()
        self._owner.loop.call_soon_threadsafe(self._begin, work, future)
        return future

    def _begin(self, work: Coroutine[Any, Any, T], future: ResultFuture[T]) -> None:
        task = self._owner.loop.create_task(work)
        task.add_done_callback(lambda done: _settle(future, done))
        future.add_done_callback(lambda known: self._cancel_if(known.cancelled(), task))

    def _cancel_if(self, cancelled: bool, task: asyncio.Task[Any]) -> None:
        if cancelled and not task.done():
            self._owner.loop.call_soon_threadsafe(task.cancel)

    async def encode(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run CPU-heavy work off the loop; call it from the loop."""
        return await self._owner.loop.run_in_executor(
            self._owner.encoders, lambda: function(*arguments)
        )

    def release(self) -> None:
        """Give the lease back; the last one out stops the thread."""
        global _current
        with _lock:
            if self._released or self._pid != os.getpid():
                return
            self._released = True
            self._owner.leases -= 1
            if self._owner.leases == 0:
                if _current is self._owner:
                    _current = None
                self._owner.stop()

    def join(self, timeout: float) -> None:
        """After release: wait for the thread to end if nobody else uses it."""
        if self._owner.leases == 0 and not self.on_loop:
            self._owner.thread.join(timeout)


def _settle(future: Future[T], done: asyncio.Task[T]) -> None:
    """Hand a task's end to the future that stands for it on other threads."""
    if done.cancelled():
        future.cancel()
    if not future.set_running_or_notify_cancel():
        return
    if (error := done.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())


_lock = threading.Lock()
_current: LoopThread | None = None


def acquire() -> Lease:
    """A lease on this process's loop thread, starting it if needed."""
    global _current
    with _lock:
        if _current is None:
            _current = LoopThread()
        _current.leases += 1
        return Lease(_current)


def close_at_exit(callback: WeakMethod[Callable[[], Coroutine[Any, Any, None]]]) -> None:
    """Await this on the loop when the interpreter exits, if its owner still exists then."""
    _closers[:] = [known for known in _closers if known() is not None]
    _closers.append(callback)


_closers: list[WeakMethod[Callable[[], Coroutine[Any, Any, None]]]] = []


def _close_everything() -> None:
    """Stop all work before the interpreter goes: native threads must not call into a dead one."""
    current = _current
    if current is None:
        return

    async def close() -> None:
        found = [method() for method in _closers]
        await asyncio.gather(*[m() for m in found if m is not None], return_exceptions=True)

    with contextlib.suppress(Exception):
        asyncio.run_coroutine_threadsafe(close(), current.loop).result(EXIT_TIMEOUT)
    with contextlib.suppress(RuntimeError):  # the last lease may have stopped it already
        current.stop()
    current.thread.join(EXIT_TIMEOUT)


# The ordinary atexit runs after thread pools were shut down, which the embedded server may still
# need to stop in good order; this one runs before.
getattr(threading, "_register_atexit", atexit.register)(_close_everything)


def _forget_after_fork() -> None:
    # The thread does not exist in the child; its lock may have been held at the fork.
    global _current, _lock
    _lock = threading.Lock()
    _current = None
    _closers.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
