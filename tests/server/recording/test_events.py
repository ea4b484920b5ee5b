"""Events: who comes back gets what it missed, or is told that it missed something."""

from __future__ import annotations

import asyncio

import pytest

from tinkex.server.recording import events as module
from tinkex.server.recording.events import Events


async def test_one_resumes_where_one_was() -> None:
    events = Events()
    start = events.newest
    for number in range(3):
        events.publish("alice", "run", {"n": number})
    events.publish("bob", "run", {"n": 3})
    seen = events.since(start, "alice")
    assert [event.data["n"] for event in seen.events] == [0, 1, 2]
    middle = events.id_of(seen.events[1].number)
    assert [event.data["n"] for event in events.since(middle, "alice").events] == [2]
    assert [event.data["n"] for event in events.since(middle, None).events] == [2, 3]
    assert not events.since(seen.id, None).events


@pytest.mark.parametrize("last", ["", "x", "-", "dead-1", "dead-999999999999999999999", "é-١"])
async def test_an_id_of_another_life_is_something_missed(last: str) -> None:
    events = Events()
    events.publish("alice", "run", {})
    news = events.since(last, None)
    assert news.missed
    assert not news.events
    assert news.id == events.newest


async def test_too_long_away_is_something_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 4)
    events = Events()
    start = events.newest
    for _ in range(4):
        events.publish("alice", "run", {})
    assert len(events.since(start, None).events) == 4
    events.publish("alice", "run", {})
    assert events.since(start, None).missed
    assert events.since(events.id_of(99), None).missed


async def test_who_waits_is_woken_by_news_and_by_the_end() -> None:
    events = Events()
    waiting = asyncio.ensure_future(events.after(events.newest))
    await asyncio.sleep(0)
    assert not waiting.done()
    events.publish("alice", "run", {})
    await waiting
    waiting = asyncio.ensure_future(events.after(events.newest))
    await asyncio.sleep(0)
    events.close()
    await waiting
