"""Promises of the trace file."""

from __future__ import annotations

import json
from typing import Any

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
