"""Streams in the server's own loop, over an engine whose every token a test decides."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from support.fake_engine import FakeEngine
from tinkex.engine.messages import Sample
from tinkex.server.app import create_app
from tinkex.server.engines.model_sources import default_cache, resolve
from tinkex.server.settings import MIB, Limits, ModelSpec, Settings, Timings

MODEL = "tinkex/tiny-llama"
ENDLESS = 999  # the fake engine holds samples of so many tokens


class Wire:
    """One request to the application, by hand: what it sent so far, and the client's going away."""

    def __init__(self, app: Any, path: str, body: dict[str, Any], key: str = "tml-a") -> None:
        self.sent: list[dict[str, Any]] = []
        self.taking = asyncio.Event()
        self.taking.set()
        self._gone = asyncio.Event()
        self._body: bytes | None = json.dumps(body).encode()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "scheme": "http",
            "server": ("127.0.0.1", 1),
            "client": ("127.0.0.1", 2),
            "headers": [(b"authorization", f"Bearer {key}".encode()), (b"host", b"127.0.0.1")],
        }
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    @property
    def text(self) -> str:
        return b"".join(part.get("body", b"") for part in self.sent).decode()

    def go_away(self) -> None:
        self._gone.set()

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        await self.taking.wait()
        self.sent.append(message)


class Door:
    def __init__(self, app: Any, engine: FakeEngine) -> None:
        self.app, self.engine = app, engine

    def ask(self, path: str = "/v1/completions", **body: Any) -> Wire:
        given = {"prompt": "x", "max_tokens": ENDLESS, "stream": True}
        return Wire(self.app, path, {"model": MODEL, **given, **body})

    async def engine_is_ready(self) -> None:
        """Until then nothing is known of what it takes."""
        await until(lambda: self.app.state.core.engines.pools[0].facts is not None)

    @property
    def held(self) -> list[Sample]:
        return self.engine.current.held if self.engine.workers else []


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    folder = resolve(MODEL, default_cache(os.environ), os.environ).folder
    engine = FakeEngine()
    settings = Settings(
        home=tmp_path / "home",
        models=(ModelSpec(MODEL, str(folder), str(folder)),),
        limits=Limits(samples_per_tenant=2, sample_result_bytes=8 * MIB),
        timings=Timings(drain_s=0.1, restart_backoff_s=(0.01,)),
    )
    app = create_app(settings, engine.launch)
    async with app.router.lifespan_context(app):
        yield Door(app, engine)


async def until(happened: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not happened():
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_away_frees_its_place_in_the_engine(
    door: Door, stream: bool
) -> None:
    wire = door.ask(stream=stream)
    await until(lambda: door.held)
    if stream:
        door.engine.current.draw(door.held[0].op, [65])
        await until(lambda: wire.sent)
    wire.go_away()
    await until(lambda: not door.held)
    await wire.task


async def test_tokens_are_told_when_they_are_drawn_and_not_later(door: Door) -> None:
    wire = door.ask()
    await until(lambda: door.held)
    for letter in b"abc":
        door.engine.current.draw(door.held[0].op, [letter])
        await until(lambda: f'"text":"{chr(letter)}"' in wire.text)  # noqa: B023 - awaited at once
    wire.go_away()
    await wire.task


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {}),
        ("/v1/chat/completions", {"prompt": None, "messages": [{"role": "user", "content": "x"}]}),
    ],
)
async def test_a_stream_begins_while_its_first_token_is_drawn(
    door: Door, path: str, body: dict[str, Any]
) -> None:
    await door.engine_is_ready()
    wire = door.ask(path, **body)
    await until(lambda: wire.sent)
    assert wire.sent[0]["status"] == 200
    assert door.held
    wire.go_away()
    await wire.task


async def test_what_the_engine_may_refuse_has_its_status(door: Door) -> None:
    await door.engine_is_ready()
    wire = door.ask(max_tokens=666, logit_bias={"5": 1.0})
    await wire.task
    assert wire.sent[0]["status"] == 400
    assert "unlucky" in wire.text


async def test_half_a_character_and_half_a_stop_string_are_held_back(door: Door) -> None:
    wire = door.ask(stop=["END"])
    await until(lambda: door.held)
    op = door.held[0].op
    for token in (*"ü".encode(), *b"aEN"):
        door.engine.current.draw(op, [token])
    await until(lambda: "".join(_texts(wire)) == "üa")
    assert "\ufffd" not in wire.text
    door.engine.current.draw(op, list(b"Tx"))
    await until(lambda: "".join(_texts(wire)) == "üaENTx")
    wire.go_away()
    await wire.task


async def test_a_chat_says_who_answers_with_the_first_token_even_if_its_text_must_wait(
    door: Door,
) -> None:
    question = [{"role": "user", "content": "x"}]
    wire = door.ask("/v1/chat/completions", prompt=None, messages=question)
    await until(lambda: door.held)
    first, second = "ü".encode()
    door.engine.current.draw(door.held[0].op, [first])
    await until(lambda: '"delta":{"role":"assistant","content":""}' in wire.text)
    door.engine.current.draw(door.held[0].op, [second])
    await until(lambda: '"delta":{"content":"ü"}' in wire.text)
    wire.go_away()
    await wire.task


async def test_a_slow_client_gets_a_coarser_stream_and_holds_nobody_up(door: Door) -> None:
    wire = door.ask()
    await until(lambda: door.held)
    op = door.held[0].op
    wire.taking.clear()
    for _ in range(1000):
        door.engine.current.draw(op, [65])
    await asyncio.sleep(0)
    other = door.ask()
    await until(lambda: len(door.held) == 2)
    door.engine.current.draw(door.held[1].op, [66])
    await until(lambda: "B" in "".join(_texts(other)))
    wire.taking.set()
    await until(lambda: len("".join(_texts(wire))) == 1000)
    assert len(wire.sent) < 100
    for each in (wire, other):
        each.go_away()
        await each.task


async def test_silence_is_filled_with_heartbeats(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tinkex.server.endpoints import conversations, draws
    from tinkex.server.endpoints.openai import completions

    for module in (draws, conversations, completions):
        monkeypatch.setattr(module, "HEARTBEAT_S", 0.02)
    openai = door.ask()
    question = [{"role": "user", "content": "x"}]
    anthropic = door.ask("/v1/messages", prompt=None, messages=question)
    await until(lambda: openai.text.count(": heartbeat\n\n") >= 2)
    await until(lambda: anthropic.text.count('event: ping\ndata: {"type":"ping"}') >= 2)
    for wire in (openai, anthropic):
        wire.go_away()
        await wire.task


async def test_a_full_house_is_told_to_come_back_later(door: Door) -> None:
    wires = [door.ask(), door.ask()]
    await until(lambda: len(door.held) == 2)
    late = door.ask()
    await late.task
    start, body = late.sent
    assert start["status"] == 429
    assert dict(start["headers"])[b"retry-after"] == b"1"
    assert json.loads(body["body"])["error"]["type"] == "rate_limit_error"
    for wire in wires:
        wire.go_away()
        await wire.task


async def test_a_stream_outlives_the_engines_death_without_a_token_twice(door: Door) -> None:
    wire = door.ask()
    await until(lambda: door.held)
    door.engine.current.draw(door.held[0].op, list(b"ab"))
    await until(lambda: "".join(_texts(wire)) == "ab")
    door.engine.current.die()
    await until(lambda: len(door.engine.workers) == 2 and door.held)
    door.engine.current.draw(door.held[0].op, list(b"abc"))
    await until(lambda: "".join(_texts(wire)) == "abc")
    wire.go_away()
    await wire.task


def _texts(wire: Wire) -> list[str]:
    events = [line[6:] for line in wire.text.split("\n\n") if line.startswith("data: {")]
    return [choice["text"] for event in events for choice in json.loads(event)["choices"]]


async def test_what_waits_for_a_client_that_takes_nothing_fills_no_memory(door: Door) -> None:
    wire = door.ask()
    await until(lambda: door.held)
    door.engine.current.draw(door.held[0].op, [65])
    await until(lambda: wire.sent)
    wire.taking.clear()
    for _ in range(40):
        await asyncio.sleep(0)
        if door.held:
            door.engine.current.draw(door.held[0].op, [65] * 1000)
    await until(lambda: not door.held)
    wire.taking.set()
    await wire.task
    assert "taken too slowly" in wire.text
    memory = door.app.state.core.sampling.admission._results
    assert memory.used == 0


async def test_a_client_that_takes_its_time_gets_what_was_gathered(door: Door) -> None:
    wire = door.ask()
    await until(lambda: door.held)
    wire.taking.clear()
    door.engine.current.draw(door.held[0].op, [65] * 1000)
    memory = door.app.state.core.sampling.admission._results
    await until(lambda: memory.used)
    wire.taking.set()
    await until(lambda: wire.text.count("A") >= 1000)
    assert memory.used == 0
    wire.go_away()
    await wire.task
