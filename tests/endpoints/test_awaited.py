"""What a stream waits with: set, waited for, and waited for too long."""

from __future__ import annotations

import asyncio

from tinkex.server.endpoints.awaited import Signal


async def test_what_was_set_before_or_meanwhile_ends_one_wait() -> None:
    signal = Signal()
    signal.set()
    signal.set()
    assert await signal.wait(60)
    waiting = asyncio.ensure_future(signal.wait(60))
    await asyncio.sleep(0)
    signal.set()
    assert await waiting
    signal.close()


async def test_a_wait_ends_after_its_time_even_if_an_earlier_one_had_more() -> None:
    signal = Signal()
    signal.set()
    assert await signal.wait(60)
    patient = asyncio.ensure_future(signal.wait(60))
    await asyncio.sleep(0)
    signal.set()
    assert await patient
    assert not await signal.wait(0.001)
    assert not await signal.wait(0.001)
    signal.close()
