"""Streams of tokens, read with ``for`` and with ``async for``, whole and cut short."""

import base64
import json
from typing import Any

import numpy as np
import pytest

import tinkex
from support.clients import PARAMS, prompt, service_for
from support.protocol_server import ProtocolServer
from support.socket_server import Answer, Cut, Reply
from tinkex.types import SampledSequence, SampleResponse
from tinkex.wire.protobuf import encode_sample_response

RESULT = encode_sample_response(
    SampleResponse(
        sequences=[
            SampledSequence(
                stop_reason="stop", sequence_id="", tokens_np=np.array([1, 2, 3], dtype=np.int32)
            )
        ]
    )
)
START = {"type": "start", "request_id": "r", "sample_sequence_ids": ["a"]}
PIECES = [
    {"type": "tokens", "index": 0, "tokens": [1], "logprobs": [-0.5]},
    {"type": "tokens", "index": 0, "tokens": [2, 3], "logprobs": [-0.25, -1.0]},
]
DONE = {"type": "done", "result": base64.b64encode(RESULT).decode()}


def lines(*events: Any) -> Answer:
    body = b"".join(json.dumps(event).encode() + b"\n" for event in events)
    return Answer(Reply(200, body, "application/x-ndjson"))


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
