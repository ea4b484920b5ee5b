"""A held request ends with its client's connection, and not before."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import ClientDisconnect, Request

from tinkex.server.http.exchange import while_connected


def request_on(connection: asyncio.Event) -> Request:
    async def receive() -> dict[str, str]:
        await connection.wait()
        return {"type": "http.disconnect"}

    return Request({"type": "http", "headers": []}, receive)


async def test_what_is_awaited_comes_back_while_the_client_is_there() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    assert await while_connected(request_on(asyncio.Event()), work()) == 7


async def test_a_client_that_hangs_up_gives_up_what_it_waited_for() -> None:
    hung_up, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            hung_up.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(ClientDisconnect):
        await while_connected(request_on(hung_up), work())
    await asyncio.wait_for(ended.wait(), 10)
