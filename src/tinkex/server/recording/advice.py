"""Advice: sentences about what looks wrong, made in one place and shown everywhere alike.

Each check looks at one thing and gives a sentence or nothing. A sentence says what was seen, with
numbers, and what to do about it. Pure: facts in, advice out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tinkex.server.storage.database.points import Point
from tinkex.wire.limits import HEARTBEAT_INTERVAL

Kind = Literal[
    "stalled_client",
    "exploding_norm",
    "failing_calls",
    "sampler_gap",
    "zero_advantages",
    "queue_limit",
    "engine_down",
    "broken_run",
    "disk_low",
]
NORM_TIMES = 10.0
GAP_TIMES, GAP_NATS = 3.0, 0.02
ZERO_SHARE = 0.5
STALL_TIMES, STALL_S = 20.0, 120.0
GONE_S = 6 * HEARTBEAT_INTERVAL
"""Silence after which a script counts as gone."""
GONE_TOLD_S = 900.0
"""For how long that is reported: most scripts have simply ended."""
LIMIT_SHARE = 0.95
_ENOUGH = 8
_TEXT = 300


@dataclass(frozen=True, slots=True)
class Advice:
    """Something to look at."""

    kind: Kind  # for programs
    severity: Literal["warning", "error"]  # error: something has failed
    text: str  # for people
    since: float  # Unix seconds
    run: str | None = None  # None: about the server
    tenant: str | None = None  # who sees it; None: all


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known of a live run. `recent` are finished points, oldest first; `idle_s` is 0 while
    something is asked of it."""

    run: str  # its id
    tenant: str  # whose it is
    now: float  # when it is looked at
    idle_s: float  # since anything was asked of it
    recent: Sequence[Point]  # points of its history
    broken: str | None = None  # why it cannot be rebuilt, if it cannot
    silent_s: float = 0.0  # since its script gave a sign of life
    failures: int = 0  # operations that failed in a row
    failing_since: float = 0.0  # when the first of those failed
    failure: str = ""  # what the last of them said


def about_run(facts: RunFacts) -> list[Advice]:
    """All advice about a run."""
    found = (
        _broken(facts),
        _failing(facts),
        _norm(facts),
        _gap(facts),
        _zero_advantages(facts),
        _stalled(facts),
    )
    return [advice for advice in found if advice is not None]


def about_limit(
    name: str, used: float, limit: float, tenant: str | None, now: float
) -> Advice | None:
    if used < LIMIT_SHARE * limit:
        return None
    whose = "on this server" if tenant is None else f"by {tenant}"
    text = (
        f"{used:,.0f} of {limit:,.0f} {name} are used {whose}: more is refused for now and clients "
        f"try again. Send less at once, or raise it: tinkex serve --limit {name}=NUMBER."
    )
    return Advice("queue_limit", "warning", text, now, tenant=tenant)


def about_engine(model: str, reason: str, deaths: int, now: float) -> Advice:
    times = f" It has died {deaths} times." if deaths > 1 else ""
    text = (
        f"The engine of {model} does not serve: {reason}.{times} Work for it waits and is not lost."
    )
    return Advice("engine_down", "error", text, now)


def about_disk(free: int, now: float) -> Advice:
    text = (
        f"The disk of the home has {free / 2**30:.1f} GiB left: see what takes room with "
        "tinkex home du, and let go of some of it with tinkex home gc."
    )
    return Advice("disk_low", "warning", text, now)


def _about(facts: RunFacts, kind: Kind, text: str, since: float, *, error: bool = False) -> Advice:
    return Advice(
        kind, "error" if error else "warning", text, since, run=facts.run, tenant=facts.tenant
    )


def _broken(facts: RunFacts) -> Advice | None:
    if facts.broken is None:
        return None
    text = (
        f"This run cannot go on: {_brief(facts.broken)}. Make a new one from its last checkpoint."
    )
    return _about(facts, "broken_run", text, facts.now, error=True)


def _failing(facts: RunFacts) -> Advice | None:
    if facts.failures < 2:
        return None
    text = (
        f"The last {facts.failures} calls of this run failed. The newest: {_brief(facts.failure)}"
    )
    return _about(facts, "failing_calls", text, facts.failing_since, error=True)


def _norm(facts: RunFacts) -> Advice | None:
    values = _series(facts.recent, "grad_norm")
    if len(values) <= _ENOUGH:
        return None
    before = _median(values[:-1])
    point, newest = values[-1]
    if newest <= NORM_TIMES * before or before <= 0:
        return None
    text = (
        f"The gradient norm is {newest:.3g} in step {point.step}; before: {before:.3g}. "
        "Lower the learning rate, set grad_clip_norm, or look at the data of this step."
    )
    return _about(facts, "exploding_norm", text, point.at)


def _gap(facts: RunFacts) -> Advice | None:
    values = _series(facts.recent, "sampler_gap")
    if len(values) <= _ENOUGH:
        return None
    half = len(values) // 2
    before = _median(values[:half])
    after = _median(values[half:])
    if after <= max(GAP_NATS, GAP_TIMES * before):
        return None
    text = (
        f"Trainer and sampler disagree by {after:.3g} nats a token, up from {before:.3g}: "
        "importance weights carry that into every gradient. Sample from the newest weights, and "
        "compare dtypes."
    )
    return _about(facts, "sampler_gap", text, values[half][0].at)


def _zero_advantages(facts: RunFacts) -> Advice | None:
    values = _series(facts.recent, "zero_advantages")[-_ENOUGH:]
    if len(values) < _ENOUGH:
        return None
    share = sum(value for _, value in values) / len(values)
    if share <= ZERO_SHARE:
        return None
    text = (
        f"{share:.0%} of the data of the last {len(values)} steps has no advantage at all: in "
        "those groups every sample got the same reward, and nothing is learnt from them. Choose "
        "problems that are neither solved nor hopeless, or take larger groups."
    )
    return _about(facts, "zero_advantages", text, values[0][0].at)


def _stalled(facts: RunFacts) -> Advice | None:
    paces = _series(facts.recent, "step_s")
    if len(paces) < 3:
        return None
    pace = _median(paces)
    if facts.idle_s <= max(STALL_S, STALL_TIMES * pace) or facts.silent_s > GONE_TOLD_S:
        return None
    if facts.silent_s > GONE_S:
        text = (
            f"Nothing was heard of this run's script for {_span(facts.silent_s)}. It has ended "
            "without closing its client, or is cut off from this server."
        )
    else:
        text = (
            f"Nothing was asked of this run for {_span(facts.idle_s)}; before, a step took about "
            f"{_span(pace)}. Its script may hang or be waiting for something else."
        )
    return _about(facts, "stalled_client", text, facts.now - facts.idle_s)


def _series(recent: Iterable[Point], metric: str) -> list[tuple[Point, float]]:
    return [(point, point.values[metric]) for point in recent if metric in point.values]


def _median(series: Sequence[tuple[Point, float]]) -> float:
    return float(np.median([value for _, value in series]))


def _span(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.0f} hours"


def _brief(text: str) -> str:
    plain = "".join(char if char.isprintable() else " " for char in text).strip().rstrip(".")
    return plain if len(plain) <= _TEXT else f"{plain[:_TEXT]}…"
