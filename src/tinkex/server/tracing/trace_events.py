"""A session's requests as a trace that Perfetto opens (the JSON trace-event form).

Knows spans only. One track per run or sampler, one slice from acceptance to result per request,
with the time it waited for its turn as a slice inside.

The text is made span by span: Python's encoder lets no other thread run until it is through with
a value, and a long session's is seconds of work.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

CONTENT_TYPE = "application/json"
_PROCESS = 1


@dataclass(frozen=True, slots=True)
class Span:
    """One request. Times are Unix seconds; `None` means it has not come so far."""

    track: str  # the line it is drawn on
    name: str  # the request
    accepted: float  # Unix seconds
    started: float | None = None  # Unix seconds; None: it still waits
    finished: float | None = None  # Unix seconds; None: it still runs
    args: Mapping[str, object] = field(default_factory=dict)  # shown with it


def encode(session_id: str, spans: Iterable[Span], now: float) -> bytes:
    """The trace file of a session. Requests still open end at `now` and say so."""
    ordered = sorted(spans, key=lambda span: (span.accepted, span.name))
    tracks: dict[str, int] = {}
    for span in ordered:
        tracks.setdefault(span.track, len(tracks) + 1)
    names = [_named("process_name", 0, f"session {session_id}")]
    names += [_named("thread_name", number, track) for track, number in tracks.items()]
    pieces = [_text(names), *(_text(_slices(span, tracks[span.track], now)) for span in ordered)]
    return f'{{"displayTimeUnit": "ms", "traceEvents": [{", ".join(pieces)}]}}'.encode()


def _text(events: list[dict[str, object]]) -> str:
    return json.dumps(events)[1:-1]


def _named(kind: str, thread: int, name: str) -> dict[str, object]:
    return {"ph": "M", "name": kind, "pid": _PROCESS, "tid": thread, "args": {"name": name}}


def _slices(span: Span, thread: int, now: float) -> list[dict[str, object]]:
    """Asynchronous slices: requests of one track may overlap, which plain slices may not."""
    end = now if span.finished is None else span.finished
    args = {**span.args, **({} if span.finished is not None else {"open": True})}
    key = f"{thread}:{span.accepted:.6f}:{span.name}"
    slices = [_edge("b", span.name, key, thread, span.accepted, args)]
    if span.started is not None:
        slices.append(_edge("b", "wait", key, thread, span.accepted, {}))
        slices.append(_edge("e", "wait", key, thread, span.started, {}))
        slices.append(_edge("b", "run", key, thread, span.started, {}))
        slices.append(_edge("e", "run", key, thread, end, {}))
    return [*slices, _edge("e", span.name, key, thread, end, {})]


def _edge(
    phase: str, name: str, key: str, thread: int, at: float, args: Mapping[str, object]
) -> dict[str, object]:
    return {
        "ph": phase,
        "cat": "request",
        "name": name,
        "id": key,
        "pid": _PROCESS,
        "tid": thread,
        "ts": round(at * 1e6),
        "args": dict(args),
    }
