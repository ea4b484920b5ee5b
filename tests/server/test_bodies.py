"""What one tenant sends, however large or slow, leaves memory and threads to the next."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from support.served import Api, served
from tinkex.server.budgets import ByteBudget
from tinkex.server.http.bodies import INLINE_BYTES, STRANGERS_BYTES
from tinkex.server.refusals import Busy
from tinkex.server.settings import MIB, Limits
from tinkex.wire.compression import compress

WAIT_S = 60.0
SESSION = {"tags": ["x" * INLINE_BYTES]}  # read in a thread, then refused: a tag is shorter


def tenant_of(api: Api) -> str:
    return api.core.tenants.identify(api.key)


def busy(api: Api, gate: threading.Event) -> list[asyncio.Task[bool]]:
    """All threads that a tenant can have for its bodies, until the gate opens."""
    work = api.core.reading.run
    return [asyncio.create_task(work(tenant_of(api), gate.wait)) for _ in range(64)]


async def endless(first: bytes) -> AsyncIterator[bytes]:
    """A body of which no more comes."""
    yield first
    await asyncio.Event().wait()


async def hang(api: Api, size: int, count: int) -> list[asyncio.Task[httpx.Response]]:
    """Bodies that stay under way, each holding so much."""
    before = api.core.receiving.used
    tasks = [
        asyncio.create_task(api.send("POST", "telemetry", content=endless(b" " * size)))
        for _ in range(count)
    ]
    while api.core.receiving.used < before + size * count:
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in tasks)
    return tasks


async def test_bodies_that_never_end_leave_room_for_those_of_others(tmp_path: Path) -> None:
    limits = Limits(receiving_bytes=8 * MIB)
    async with served(tmp_path, limits=limits) as eve:
        hung = await hang(eve, MIB, 4)
        refused = await eve.send("POST", "telemetry", content=b" " * 2)
        assert refused.status_code == 429
        bob = eve.as_tenant("tml-bob")
        await bob.session()
        assert (await bob.send("POST", "telemetry", content=b" " * MIB)).status_code == 200
        for task in hung:
            task.cancel()
        await asyncio.gather(*hung, return_exceptions=True)
        assert eve.core.receiving.used == 0


async def test_what_a_body_unpacks_to_counts_until_it_was_read(tmp_path: Path) -> None:
    async with served(tmp_path, limits=Limits(receiving_bytes=8 * MIB)) as eve:
        gate = threading.Event()
        held = [
            asyncio.create_task(eve.core.reading.run(tenant_of(eve), gate.wait)) for _ in range(64)
        ]
        bomb = compress(b'{"tags": []}' + b" " * 3 * MIB)
        packed = {"content-encoding": "zstd"}
        first = asyncio.create_task(
            eve.send("POST", "create_session", content=bomb, headers=packed)
        )
        while eve.core.receiving.used < 3 * MIB:
            await asyncio.sleep(0.01)
        second = await eve.send("POST", "create_session", content=bomb, headers=packed)
        assert second.status_code == 429
        gate.set()
        assert (await first).status_code == 200
        await asyncio.gather(*held)
        assert eve.core.receiving.used == 0


async def test_bodies_that_take_long_to_read_leave_threads_to_others(tmp_path: Path) -> None:
    async with served(tmp_path) as eve:
        gate = threading.Event()
        held = [
            asyncio.create_task(eve.core.reading.run(tenant_of(eve), gate.wait)) for _ in range(64)
        ]
        await asyncio.sleep(0)
        mine = asyncio.create_task(eve.send("POST", "create_session", json=SESSION))
        bob = eve.as_tenant("tml-bob")
        his = await asyncio.wait_for(bob.send("POST", "create_session", json=SESSION), WAIT_S)
        assert his.status_code == 422
        assert not mine.done()
        gate.set()
        assert (await mine).status_code == 422
        await asyncio.gather(*held)


async def test_who_shows_no_key_may_send_little(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        body = b'{"key": "' + b"x" * STRANGERS_BYTES + b'"}'
        stranger = {"x-api-key": "", "x-tinkex-page": ""}
        answer = await api.send("POST", "dashboard/visit", content=body, headers=stranger)
        assert answer.status_code == 413


def test_each_tenant_has_half_of_what_the_others_leave() -> None:
    budget = ByteBudget(1024, "things")
    with budget.growing("alice") as first, budget.growing("alice") as hers:
        first(500)
        hers(12)
        with pytest.raises(Busy):
            hers(1)
        with budget.growing("bob") as his:
            his(256)
            with pytest.raises(Busy):
                his(1)
            with budget.growing("carol") as last:
                last(128)
    assert budget.used == 0


def test_what_is_larger_than_the_budget_passes_alone() -> None:
    budget = ByteBudget(10, "things")
    with budget.growing("alice") as take:
        take(8)
        take(8)
        with budget.growing("bob") as other, pytest.raises(Busy):
            other(1)
