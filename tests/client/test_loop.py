"""Promises of the SDK's event loop: one thread, as long as somebody holds it, and no longer."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError

import pytest

from tinkex.client.concurrency import loop


@pytest.fixture(autouse=True)
def no_loop_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that another test of this process still holds keeps the loop it began on."""
    monkeypatch.setattr(loop, "_current", None)


def test_leases_share_one_thread_and_the_last_one_out_ends_it() -> None:
    first, second = loop.acquire(), loop.acquire()
    thread = first._owner.thread
    assert second._owner.thread is thread
    first.release()
    first.release()
    assert second.submit(asyncio.sleep(0, "still there")).result(60) == "still there"
    second.release()
    second.join(60)
    assert not thread.is_alive()
    assert loop._current is None


def test_a_released_lease_refuses_work_and_closes_it() -> None:
    lease = loop.acquire()
    lease.release()
    work = asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="after its client was closed"):
        lease.submit(work)
    with pytest.raises(RuntimeError, match="cannot reuse"):
        work.send(None)
    lease.join(60)


def test_errors_and_results_come_back_to_the_thread_that_asked() -> None:
    async def fail() -> None:
        raise ValueError("told")

    lease = loop.acquire()
    assert lease.submit(asyncio.sleep(0, 7)).result(60) == 7
    with pytest.raises(ValueError, match="told"):
        lease.submit(fail()).result(60)
    lease.release()
    lease.join(60)


def test_cancelling_a_future_cancels_its_task() -> None:
    begun, ended = threading.Event(), threading.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    lease = loop.acquire()
    future = lease.submit(wait())
    assert begun.wait(60)
    assert future.cancel()
    assert ended.wait(60)
    with pytest.raises(CancelledError):
        future.result(60)
    lease.release()
    lease.join(60)


def test_the_end_of_the_loop_ends_what_runs_on_it() -> None:
    started, ended = threading.Event(), threading.Event()

    async def wait() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    lease = loop.acquire()
    lease.submit(wait())
    assert started.wait(60)
    lease.release()
    lease.join(60)
    assert ended.is_set()


def test_encoding_runs_beside_the_loop() -> None:
    lease = loop.acquire()

    async def encoded() -> tuple[bool, int]:
        return lease.on_loop, await lease.encode(threading.get_ident)

    on_loop, encoder = lease.submit(encoded()).result(60)
    assert on_loop
    assert encoder not in (lease._owner.thread.ident, threading.get_ident())
    lease.release()
    lease.join(60)
