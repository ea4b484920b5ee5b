"""Ranges of sample numbers, written ahead: after a restart no accepted one is forgotten."""

from __future__ import annotations

import asyncio
from typing import Any

from tinkex.server.sampling.accepted_numbers import SampleWindows
from tinkex.server.storage.database.samplers import Window


class SlowDatabase:
    """Writes at once; a read is answered when the test lets it."""

    def __init__(self) -> None:
        self.reads: list[asyncio.Future[None]] = []
        self.written: Window | None = None

    async def read(self, _: Any, *__: Any) -> None:
        answered = asyncio.get_running_loop().create_future()
        self.reads.append(answered)
        await answered

    async def write(self, _: Any, window: Window) -> None:
        self.written = window


async def test_a_sample_accepted_while_another_waits_for_the_database_stays_in_the_range() -> None:
    """Two first samples of a client, the lower one accepted first."""
    database: Any = SlowDatabase()
    windows, accepted = SampleWindows(database), set[int]()

    async def accept(number: int) -> None:
        await windows.extend("sampler", 0, number, lambda: min(accepted, default=number))
        accepted.add(number)

    async with asyncio.TaskGroup() as group:
        group.create_task(accept(7))
        lower = group.create_task(accept(0))
        while len(database.reads) < 2:
            await asyncio.sleep(0)
        database.reads[1].set_result(None)
        await lower
        database.reads[0].set_result(None)
    assert (database.written.low, database.written.high > 7) == (0, True)
