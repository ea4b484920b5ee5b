"""Answers of megabytes: a few of a key's at once, and none that others wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import Message

from tinkex.server.checkpoints.turns import Turns
from tinkex.server.fair_threads import FairThreads
from tinkex.server.http.large_answers import large_json


async def _nothing() -> Message:
    raise AssertionError("nobody asks")


async def _settled() -> None:
    for _ in range(50):
        await asyncio.sleep(0.002)


async def test_a_key_has_few_large_answers_in_memory_until_it_took_them() -> None:
    threads = FairThreads(2, "test", most=1)
    core: Any = SimpleNamespace(large_answers=Turns(2), reading=threads)
    read, found = asyncio.Event(), []

    async def slow_reader(_: Message) -> None:
        await read.wait()

    async def answer(tenant: str) -> None:
        async def find() -> Mapping[str, Any]:
            found.append(tenant)
            return {"values": [1.5]}

        response = await large_json(core, tenant, find)
        assert response.body == b'{"values":[1.5]}'
        await response({"type": "http"}, _nothing, slow_reader)

    asked = [asyncio.create_task(answer(each)) for each in "aaaab"]
    await _settled()
    assert sorted(found) == ["a", "a", "b"]
    read.set()
    await asyncio.gather(*asked)
    assert sorted(found) == ["a", "a", "a", "a", "b"]
    threads.close(wait=True)


async def test_an_answer_that_cannot_be_made_keeps_no_place() -> None:
    core: Any = SimpleNamespace(large_answers=Turns(1), reading=None)

    async def find() -> Mapping[str, Any]:
        raise LookupError

    for _ in range(2):
        with pytest.raises(LookupError):
            await large_json(core, "a", find)


async def test_a_client_that_goes_away_keeps_no_place() -> None:
    threads = FairThreads(1, "test", most=1)
    core: Any = SimpleNamespace(large_answers=Turns(1), reading=threads)

    async def find() -> Mapping[str, Any]:
        return {"values": [1.5]}

    async def gone(_: Message) -> None:
        raise ConnectionResetError

    for _ in range(2):
        response = await asyncio.wait_for(large_json(core, "a", find), 10)
        with pytest.raises(ConnectionResetError):
            await response({"type": "http"}, _nothing, gone)
    threads.close(wait=True)
