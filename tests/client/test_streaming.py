"""Streams of tokens, read with ``for`` and with ``async for``, whole and cut short."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

import tinkex
from support.clients import PARAMS, prompt, service_for
from support.protocol_server import ProtocolServer
from support.socket_server import Answer, Cut, Reply, Stall
from support.streams import DONE, PIECES, START, lines
from tinkex.client.concurrency.futures import ResultFuture


@pytest.fixture
def server():
    with ProtocolServer() as running:
        yield running


def tokens_of(pieces: list[Any]) -> list[int]:
    return [token for piece in pieces for token in piece.tokens]


def test_tokens_come_as_they_are_written(server: ProtocolServer) -> None:
    server.fail("/asample_stream", lines(START, *PIECES, DONE))
    with service_for(server) as service:
        sampler = service.create_sampling_client(base_model="acme/tiny")
        stream = sampler.stream(prompt(9), PARAMS)
        pieces = list(stream)
    assert tokens_of(pieces) == [1, 2, 3]
    assert [piece.stop_reason for piece in pieces] == [None, None, "stop"]
    assert stream.response is not None
    assert stream.response.sequences[0].tokens == [1, 2, 3]
    asked = server.asked("/asample_stream")[0].body
    assert asked["prompt"]["chunks"][0]["tokens"] == [9]
    assert asked["num_samples"] == 1


async def test_streams_can_be_awaited_and_left_early(server: ProtocolServer) -> None:
    server.fail("/asample_stream", *[lines(START, *PIECES, DONE)] * 2)
    service = service_for(server)
    sampler = await service.create_sampling_client_async(base_model="acme/tiny")
    assert tokens_of([piece async for piece in sampler.stream(prompt(9), PARAMS)]) == [1, 2, 3]
    async for piece in sampler.stream(prompt(9), PARAMS):
        assert piece.tokens == [1]
        break
    assert (await sampler.sample_async(prompt(1), 1, PARAMS)).sequences
    await service.close("success")


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (lines(START, {"type": "failed", "error": "too long", "category": "user"}),
         tinkex.RequestFailedError, "too long"),
        (lines(START, PIECES[0]), ValueError, "ended before"),
        (Answer(Reply(200, b"not json\n")), ValueError, "no event"),
        (Answer(Reply(404, b"{}")), tinkex.TinkerError, "does not stream"),
        (Answer(Reply(503, b"{}")), tinkex.InternalServerError, "503"),
        (Cut(after=0), tinkex.APIConnectionError, "Connection error"),
    ],
)  # fmt: skip
def test_streams_that_end_badly_say_why(
    server: ProtocolServer, answer: Any, kind: type[Exception], says: str
) -> None:
    server.fail("/asample_stream", answer)
    with service_for(server) as service:
        sampler = service.create_sampling_client(base_model="acme/tiny")
        with pytest.raises(kind, match=says):
            list(sampler.stream(prompt(9), PARAMS))
        assert sampler.sample(prompt(1), 1, PARAMS).result(timeout=30).sequences


def test_an_interrupt_while_a_token_is_awaited_ends_the_stream_and_nothing_else(
    server: ProtocolServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C arrives in the main thread, while the SDK's loop waits for the next token."""
    server.fail("/asample_stream", Stall(3600.0), lines(START, *PIECES, DONE))
    with service_for(server) as service:
        sampler = service.create_sampling_client(base_model="acme/tiny")
        stream = sampler.stream(prompt(9), PARAMS)

        def interrupted(*_: Any) -> Any:
            wait_until(lambda: server.count("/asample_stream") == 1)
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(ResultFuture, "result_here", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(iter(stream))
        assert tokens_of(list(sampler.stream(prompt(9), PARAMS))) == [1, 2, 3]


async def test_a_cancelled_reader_ends_the_stream(server: ProtocolServer) -> None:
    server.fail("/asample_stream", Stall(3600.0))
    service = service_for(server)
    sampler = await service.create_sampling_client_async(base_model="acme/tiny")

    async def read() -> list[Any]:
        return [piece async for piece in sampler.stream(prompt(9), PARAMS)]

    reading = asyncio.create_task(read())
    await asyncio.to_thread(wait_until, lambda: server.count("/asample_stream") == 1)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert (await sampler.sample_async(prompt(1), 1, PARAMS)).sequences
    await service.close("success")


def wait_until(happened: Callable[[], bool]) -> None:
    for _ in range(30_000):
        if happened():
            return
        time.sleep(0.001)
    raise AssertionError("it did not happen")
