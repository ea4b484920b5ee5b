"""What one tenant has with an engine, however much it is, keeps no other from a turn there."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.served import Api, served
from tinkex.server.settings import Scheduling

LONG = 5_000
"""Tokens: more than any window here has."""


def with_engine(api: Api) -> int:
    """Operations that were sent to the engine and have not ended."""
    (engine,) = api.core.engines.pools[0]
    return api.core.scheduler.in_flight(engine)


async def test_a_call_larger_than_the_window_keeps_no_other_tenant_waiting(tmp_path: Path) -> None:
    """A batch of 163,840 tokens kept its neighbour's 128 waiting for 108 s, until it had ended."""
    async with served(tmp_path, scheduling=Scheduling(tokens_in_flight=1_000)) as eve:
        bob = eve.as_tenant("tml-bob")
        hers, his = await eve.model(await eve.session()), await bob.model(await bob.session())
        eve.engine.gate = asyncio.Event()
        await eve.forward(hers, 1, length=LONG)
        await eve.forward(hers, 2, length=LONG)
        assert with_engine(eve) == 1
        await bob.forward(his, 1)
        assert with_engine(eve) == 2
        eve.engine.gate.set()
        await bob.result(f"{his}:1")
        await eve.result(f"{hers}:2")


async def test_many_operations_of_one_tenant_keep_no_other_waiting(tmp_path: Path) -> None:
    async with served(tmp_path, scheduling=Scheduling(operations_in_flight=3)) as eve:
        bob = eve.as_tenant("tml-bob")
        session, bobs = await eve.session(), await bob.session()
        hers = [await eve.model(session, number) for number in range(4)]
        his = [await bob.model(bobs, number) for number in range(2)]
        eve.engine.gate = asyncio.Event()
        for run in hers:
            await eve.forward(run, 1)
        assert with_engine(eve) == 3
        for run in his:
            await bob.forward(run, 1)
        assert with_engine(eve) == 4
        eve.engine.gate.set()
        for run in his:
            await bob.result(f"{run}:1")
        for run in hers:
            await eve.result(f"{run}:1")


async def test_a_tenant_has_few_long_calls_with_an_engine_at_once(tmp_path: Path) -> None:
    """The engine gives turns to four batches: one tenant's runs must not be all of them."""
    async with served(tmp_path) as eve:
        session = await eve.session()
        runs = [await eve.model(session, number) for number in range(4)]
        eve.engine.gate = asyncio.Event()
        for run in runs:
            await eve.forward(run, 1, length=LONG)
        assert with_engine(eve) == 2
        eve.engine.gate.set()
        for run in runs:
            await eve.result(f"{run}:1")
