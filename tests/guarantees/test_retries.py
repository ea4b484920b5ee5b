"""Guarantee 9: a storm of retries leaves the same weights as sending everything once."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any
from urllib.parse import urlparse

import httpx
import pytest

from support.guarantee_data import batch
from support.server_process import MODEL, ServerProcess
from tinkex.wire.protobuf import encode_forward_backward

pytestmark = pytest.mark.slow

HEADERS = {"x-api-key": "tml-storm"}
STEPS = 10

Request = tuple[str, str, bytes]


def _requests(model: str, name: str) -> list[Request]:
    """The operations of one run: (route, content type, body)."""
    found: list[Request] = []
    for number in range(STEPS):
        data = batch(number, 3)
        seq = 2 * number + 1
        body = encode_forward_backward(model, seq, data, "cross_entropy", None, False)
        found.append(("forward_backward", "application/x-protobuf", body))
        step = {"model_id": model, "seq_id": seq + 1, "adam_params": {"learning_rate": 1e-2}}
        found.append(("optim_step", "application/json", json.dumps(step).encode()))
    save = {"model_id": model, "seq_id": 2 * STEPS + 1, "path": name}
    found.append(("save_weights", "application/json", json.dumps(save).encode()))
    return found


async def _send(client: httpx.AsyncClient, request: Request) -> str:
    path, kind, body = request
    headers = {**HEADERS, "content-type": kind}
    response = await client.post(f"/api/v1/{path}", content=body, headers=headers)
    assert response.status_code == 200, response.text
    return str(response.json()["request_id"])


async def _cut(url: str, request: Request, share: float) -> None:
    """The same request, its connection gone after some of its bytes."""
    path, kind, body = request
    address = urlparse(url)
    head = (
        f"POST /api/v1/{path} HTTP/1.1\r\nHost: x\r\nX-API-Key: tml-storm\r\n"
        f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    _, writer = await asyncio.open_connection(address.hostname, address.port)
    whole = head + body
    writer.write(whole[: int(len(whole) * share)])
    await writer.drain()
    writer.close()
    await writer.wait_closed()


async def _start(client: httpx.AsyncClient) -> str:
    made = await client.post("/api/v1/create_session", json=_SESSION, headers=HEADERS)
    body = {
        "session_id": made.json()["session_id"],
        "model_seq_id": 0,
        "base_model": MODEL,
        "lora_config": {"rank": 4, "seed": 3},
    }
    answers = [
        await client.post("/api/v1/create_model", json=body, headers=HEADERS) for _ in range(3)
    ]
    assert len({answer.text for answer in answers}) == 1
    return str(answers[0].json()["model_id"])


_SESSION: dict[str, Any] = {"tags": [], "user_metadata": {}}


async def _result(client: httpx.AsyncClient, request_id: str) -> bytes:
    body = {"request_id": request_id, "allow_metadata_only": False}
    while True:
        answer = await client.post("/api/v1/retrieve_future", json=body, headers=HEADERS)
        if answer.status_code == 200:
            return answer.content
        assert answer.status_code == 408, answer.text


async def test_guarantee_09_retry_storm(server: ServerProcess) -> None:
    """Each request is sent one to five times, all shuffled, some cut off at a random byte: every
    copy gets the same future and the final weights have the same hash."""
    dice = random.Random(9)
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        calm = await _start(client)
        for request in _requests(calm, "storm-calm"):
            await _result(client, await _send(client, request))
        stormy = await _start(client)
        copies = [
            request
            for request in _requests(stormy, "storm-wild")
            for _ in range(dice.randint(1, 5))
        ]
        dice.shuffle(copies)

        async def copy(request: Request) -> str:
            while dice.random() < 0.4:
                await _cut(server.url, request, dice.random())
            return await _send(client, request)

        promised = await asyncio.gather(*map(copy, copies))
        assert set(promised) == {f"{stormy}:{number}" for number in range(1, 2 * STEPS + 2)}
        for request_id in set(promised):
            assert b'"error"' not in await _result(client, request_id)
    assert server.weights_digest("storm-wild") == server.weights_digest("storm-calm")
