"""Promises of the trace file."""

from __future__ import annotations

import json
import threading
from typing import Any, cast

import pytest

from tinkex.server.clock import SystemClock
from tinkex.server.fair_threads import FairThreads
from tinkex.server.tracing import trace_events
from tinkex.server.tracing.session_traces import Traces
from tinkex.server.tracing.trace_events import Span, encode


def events(raw: bytes, phase: str) -> list[dict[str, Any]]:
    return [event for event in json.loads(raw)["traceEvents"] if event["ph"] == phase]


def test_every_track_is_named_and_every_slice_that_begins_also_ends() -> None:
    spans = [
        Span("s:train:0", "forward_backward", 10.0, 10.5, 12.0, {"seq_id": 1}),
        Span("s:train:0", "optim_step", 10.1, 12.0, 12.2),
        Span("s:sample:0", "asample", 11.0, 11.0, 11.5),
    ]
    raw = encode("s", spans, now=20.0)
    names = [event["args"]["name"] for event in events(raw, "M")]
    assert names == ["session s", "s:train:0", "s:sample:0"]
    begun = [(event["id"], event["name"]) for event in events(raw, "b")]
    ended = [(event["id"], event["name"]) for event in events(raw, "e")]
    assert sorted(begun) == sorted(ended)
    first = next(event for event in events(raw, "b") if event["name"] == "forward_backward")
    assert (first["ts"], first["args"]) == (10_000_000, {"seq_id": 1})
    assert len({event["id"] for event in events(raw, "b")}) == 3


def test_time_spent_waiting_is_told_from_time_spent_running() -> None:
    raw = encode("s", [Span("t", "optim_step", 1.0, 3.0, 4.0)], now=9.0)
    edges = [
        (e["ph"], e["name"], e["ts"] // 1_000_000) for e in events(raw, "b") + events(raw, "e")
    ]
    assert ("b", "wait", 1) in edges
    assert ("e", "wait", 3) in edges
    assert ("e", "run", 4) in edges


def test_an_open_request_ends_now_and_says_so() -> None:
    raw = encode("s", [Span("t", "asample", 1.0)], now=5.0)
    (begin,), (end,) = events(raw, "b"), events(raw, "e")
    assert begin["args"] == {"open": True}
    assert end["ts"] == 5_000_000


def test_a_long_trace_is_made_span_by_span(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written at once, that of 6,400 samples kept everybody waiting for 0.2 s, in any thread."""
    sizes: list[int] = []

    def dumps(value: Any, whole: Any = json.dumps) -> str:
        sizes.append(len(value))
        text: str = whole(value)
        return text

    monkeypatch.setattr(trace_events.json, "dumps", dumps)
    raw = encode("s", [Span("t", "asample", float(i), float(i), i + 1.0) for i in range(500)], 9e9)
    assert len(json.loads(raw)["traceEvents"]) == 2 + 500 * 6
    assert max(sizes) == 6


async def test_a_trace_is_made_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    class Empty:
        async def browse(self, *_: Any) -> list[Span]:
            return []

    made_in: list[int] = []

    def encode(*_: Any) -> bytes:
        made_in.append(threading.get_ident())
        return b"{}"

    monkeypatch.setattr(trace_events, "encode", encode)
    threads, store = FairThreads(1, "test", most=1), cast(Any, Empty())
    try:
        found = await Traces(store, SystemClock(), threads).encode("a", "s")
    finally:
        threads.close(wait=True)
    assert found == b"{}"
    assert made_in != [threading.get_ident()]
