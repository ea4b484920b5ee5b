"""Promises wake everyone once, cost nothing while they wait, and leave memory when they may."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tinkex.server.fairness import Fairness
from tinkex.server.promises import Outcome, Promises
from tinkex.server.sampling.completion_feed import Completions


@dataclass
class _Clock:
    time: float = 1000.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time


async def test_everyone_who_waits_gets_the_first_outcome() -> None:
    promise = Promises().add("r", "t")
    waiting = [asyncio.create_task(promise.wait(60.0)) for _ in range(100)]
    await asyncio.sleep(0)
    promise.resolve(Outcome("json", b"1"))
    promise.resolve(Outcome("json", b"2"))
    assert {(await each).body for each in waiting if await each} == {b"1"}
    assert (await promise.wait(0.0)) == Outcome("json", b"1")


async def test_a_wait_ends_without_an_outcome_when_its_time_is_over() -> None:
    promise = Promises().add("r", "t")
    assert await promise.wait(0.01) is None
    assert not promise._waiters


async def test_a_server_that_stops_sends_away_who_can_come_back_and_nobody_else() -> None:
    promises = Promises()
    promise = promises.add("r", "t")
    poll = asyncio.create_task(promise.wait(60.0))
    stream = asyncio.create_task(promise.wait(60.0, patient=True))
    await asyncio.sleep(0)
    promises.dismiss()
    assert await poll is None
    assert not stream.done()
    promise.resolve(Outcome("json", b"1"))
    assert await stream == Outcome("json", b"1")


async def test_retired_promises_go_oldest_first_by_size_and_number() -> None:
    promises = Promises(retired_bytes=100, retired=3)
    for number in range(5):
        promise = promises.add(str(number), "t")
        promise.resolve(Outcome("json", bytes(10)))
        promises.retire(promise)
    assert [promises.get(str(number)) is None for number in range(5)] == [True, True] + [False] * 3
    big = promises.add("big", "t")
    big.resolve(Outcome("json", bytes(95)))
    promises.retire(big)
    assert len(promises) == 1
    waiting = promises.add("waiting", "t")
    assert promises.get("waiting") is waiting


async def test_a_batch_poll_waits_for_the_first_end_and_then_takes_all() -> None:
    stream = Completions(_Clock())
    waiting = asyncio.create_task(stream.after(0, 5.0))
    await asyncio.sleep(0)
    stream.add("a", False, 10)
    stream.add("b", True, 0)
    ends = await waiting
    assert [(end.request_id, end.failed) for end in ends] == [("a", False), ("b", True)]
    assert await stream.after(ends[-1].cursor, 0.01) == []
    stream.trim(ends[0].cursor)
    assert [end.request_id for end in await stream.after(0, 0.0)] == ["b"]


def test_a_later_life_of_the_server_has_later_cursors() -> None:
    clock = _Clock()
    before = Completions(clock)
    for _ in range(1000):
        before.add("x", False, 1)
    clock.time += 1.0
    after = Completions(clock)
    after.add("y", False, 1)
    assert after._events[-1].cursor > before._events[-1].cursor


def test_the_tenant_served_least_goes_first_and_a_newcomer_starts_level() -> None:
    fairness = Fairness()
    assert fairness.waiting(["a", "b"]) == ["a", "b"]
    fairness.charge("a", 100)
    assert fairness.waiting(["a", "b"]) == ["b", "a"]
    fairness.charge("b", 300)
    assert fairness.waiting(["a", "b", "c"])[-1] == "b"
    fairness.charge("c", 150)
    assert fairness.waiting(["a", "b", "c"]) == ["a", "c", "b"]


def test_who_had_the_server_alone_owes_nothing_later() -> None:
    fairness = Fairness()
    for _ in range(1000):
        fairness.waiting(["alone"])
        fairness.charge("alone", 1000)
    order = []
    for _ in range(20):
        first = fairness.waiting(["alone", "new"])[0]
        fairness.charge(first, 10)
        order.append(first)
    assert order.count("alone") == order.count("new") == 10
