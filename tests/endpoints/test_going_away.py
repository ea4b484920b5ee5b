"""Clients that go away, at a real engine: what they asked for is not drawn any further."""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.request
from typing import Any
from urllib.parse import urlsplit

import pytest

from endpoints.conftest import KEY, MODEL, World

MANY = 1500
ENDLESS = {"model": MODEL, "prompt": "x", "max_tokens": MANY, "ignore_eos": True, "n": 2}


@pytest.mark.parametrize("stream", [True, False])
def test_what_nobody_waits_for_is_no_longer_drawn(world: World, stream: bool) -> None:
    before = drawn(world)
    connection = opened(world, {**ENDLESS, "stream": stream})
    if stream:
        answer = connection.getresponse()
        assert answer.readline().startswith(b"data: ")
        answer.close()
    else:
        until(lambda: metric(world, "tinkex_sequences_in_flight") == 2)
    connection.close()
    until(lambda: metric(world, "tinkex_sequences_in_flight") == 0)
    used = drawn(world) - before
    assert used < 2 * MANY, "it was drawn to its end"
    assert used > 0 or not stream, "what was told is counted"


def opened(world: World, body: dict[str, Any]) -> http.client.HTTPConnection:
    place = urlsplit(world.url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps(body), {"x-api-key": KEY})
    return connection


def drawn(world: World) -> float:
    return metric(world, "tinkex_used_total", 'measure="sampling_sample"')


def metric(world: World, name: str, label: str = "") -> float:
    with urllib.request.urlopen(f"{world.url}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    lines = re.findall(rf"^{name}(\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
    return sum(float(value) for labels, value in lines if label in labels)


def until(happened: Any) -> None:
    end = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
