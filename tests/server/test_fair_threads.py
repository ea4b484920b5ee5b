"""Heavy text work of one tenant does not hold up another's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from tinkex.server.fair_threads import FairThreads
from tinkex.server.refusals import Busy

WAIT_S = 60.0


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    found = threading.Event()
    yield found
    found.set()


async def test_a_tenant_with_much_to_do_leaves_a_thread_to_others(gate: threading.Event) -> None:
    threads = FairThreads(3, "test", most=2)
    hers = [asyncio.create_task(threads.run("alice", lambda: gate.wait(WAIT_S))) for _ in range(9)]
    await asyncio.sleep(0)
    for number in range(3):
        his = await asyncio.wait_for(threads.run("bob", lambda n=number: n), WAIT_S)
        assert his == number
    assert not any(each.done() for each in hers)
    gate.set()
    assert all(await asyncio.gather(*hers))
    threads.close()


async def test_a_tenant_whose_texts_pile_up_is_told_to_come_back_and_others_are_not(
    gate: threading.Event,
) -> None:
    threads = FairThreads(2, "test", most=1, waiting=4)
    hers = [
        asyncio.create_task(threads.run("alice", lambda: gate.wait(WAIT_S))) for _ in range(1 + 4)
    ]
    await asyncio.sleep(0)
    with pytest.raises(Busy, match="send fewer at once"):
        await threads.run("alice", lambda: None)
    assert await threads.run("bob", lambda: "served") == "served"
    gate.set()
    await asyncio.gather(*hers)
    threads.close()


async def test_those_who_wait_take_turns(gate: threading.Event) -> None:
    threads, order = FairThreads(1, "test", most=1), list[str]()

    def note(name: str) -> Callable[[], None]:
        return lambda: order.append(name)

    works = [threads.run("first", lambda: gate.wait(WAIT_S))]
    works += [threads.run("alice", note(f"a{number}")) for number in range(3)]
    works += [threads.run("bob", note("b0")), threads.run("carol", note("c0"))]
    tasks = [asyncio.ensure_future(work) for work in works]
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*tasks)
    assert order == ["a0", "b0", "c0", "a1", "a2"]
    threads.close()


async def test_work_whose_client_went_away_is_not_begun_and_an_error_is_its_own(
    gate: threading.Event,
) -> None:
    threads, done = FairThreads(1, "test", most=1), list[str]()
    first = asyncio.create_task(threads.run("alice", lambda: gate.wait(WAIT_S)))
    await asyncio.sleep(0)
    gone = asyncio.create_task(threads.run("alice", lambda: done.append("gone")))
    broken = asyncio.create_task(threads.run("alice", lambda: 1 // 0))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    gate.set()
    await first
    with pytest.raises(ZeroDivisionError):
        await broken
    assert done == []
    assert await threads.run("alice", lambda: "goes on") == "goes on"
    threads.close()
