"""`tinkex top`: what a server does, drawn every two seconds."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import click

from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import Duration, command
from tinkex.cli.listings import dashboard
from tinkex.cli.listings.naming import short_id
from tinkex.cli.terminal.charts import number, spark
from tinkex.cli.terminal.formats import format_count, format_size
from tinkex.cli.terminal.keys import ended_by_q
from tinkex.cli.terminal.output import Output
from tinkex.cli.terminal.screens import Screen, watch
from tinkex.cli.terminal.tables import printable

_RUNS = 50
_SPEEDS_S = 600.0
_KINDS = {"training": "trained", "prefill": "read", "sampled": "sampled"}


class Top(Output):
    """What was drawn last; it is on the screen already, unless a program reads."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts

    def to_dict(self) -> dict[str, Any]:
        return self.facts

    def write_for_people(self, stream: Any) -> None:
        """Nothing: it was drawn as it came."""


ONCE = click.option("--once", is_flag=True, help="Draw once and end, as in a pipe.")
EVERY = click.option(
    "--every",
    type=Duration("s"),
    default=2.0,
    metavar="TIME",
    help="How often to draw: 500ms, 2s, 1m (default: 2s).",
)


@command
@ONCE
@EVERY
def top(context: CommandContext, once: bool, every: float) -> Top:
    """Watch a server: engines, memory, queue with its reasons, speeds, runs, advice.

    Draws until q or Ctrl-C. You see what is yours; with an operator's key, everybody's.

    Example: tinkex top --base-url http://127.0.0.1:8000
    """
    if context.is_json:
        return Top(_read(context))
    screen, last = Screen(context.streams.out), Top({})

    def picture() -> tuple[Sequence[str], bool]:
        last.facts = _read(context)
        return lines(last.facts, screen.size[0], plain=screen.is_plain), False

    with ended_by_q(context.stdin, context.deps.sleep) as wait:
        watch(screen, picture, every, once=once, wait=wait)
    return last


def _read(context: CommandContext) -> dict[str, Any]:
    now = dashboard.read(context, "now")
    recent = {"from": now["at"] - _SPEEDS_S, "to": now["at"], "buckets": 30}
    return {
        "now": now,
        "runs": dashboard.read(context, "runs", limit=_RUNS)["runs"],
        "speeds": dashboard.read(context, "server/history", **recent)["series"],
    }


def lines(facts: dict[str, Any], width: int, *, plain: bool = False) -> list[str]:
    """The picture: from the whole to the parts."""
    now = facts["now"]
    return [
        _headline(now),
        *_speeds(now, facts["speeds"], plain),
        "",
        *(line for engine in now["engines"] for line in _engine(engine, width, plain)),
        *_advice(now["advice"], width),
        *_queue(now["queue"], operator=now["viewer"]["operator"]),
        *_runs(facts["runs"], width, plain=plain, operator=now["viewer"]["operator"]),
    ]


def _headline(now: dict[str, Any]) -> str:
    viewer = now["viewer"]
    who = "every tenant" if viewer["operator"] else viewer["tenant"]
    return f"tinkex {now['version']}  up {span(now['at'] - now['started_at'])}  seen as {who}"


def _speeds(now: dict[str, Any], history: dict[str, Any], plain: bool) -> list[str]:
    cells = []
    for kind, word in _KINDS.items():
        curve = history.get(f"{kind}_tokens_per_s", {}).get("mean", [])
        text = f"{format_count(round(now['tokens_per_s'][kind]))}/s {word}"
        cells.append(f"{text} {spark(curve, 10, plain=plain)}".strip())
    return ["tokens   " + "   ".join(cells)]


def _engine(engine: dict[str, Any], width: int, plain: bool) -> list[str]:
    where = " ".join(str(engine[name]) for name in ("device", "dtype") if engine[name])
    busy = f"busy {bar(engine['busy'], 10, plain=plain)} {engine['busy']:4.0%}"
    state = engine["phase"] if not engine["reason"] else f"{engine['phase']}: {engine['reason']}"
    if engine["phase"] != "ready":
        return [f"{engine['name']}  {state}"]
    runs = engine["runs"]
    drained = "".join(f"  {why}" for why in (engine["draining"], engine["reason"]) if why)
    return [
        f"{engine['name']}  {where}{drained}",
        f"  {busy}   {engine['operations']} operations, {engine['samples']} sequences, "
        f"{runs['resident']}/{runs['places']} runs",
        *textwrap.wrap(
            f"memory {_memory(engine['memory'])}",
            width,
            initial_indent="  ",
            subsequent_indent="         ",
        ),
    ]


def _memory(memory: dict[str, Any]) -> str:
    parts = [f"{part['name']} {format_size(part['bytes'])}" for part in memory["parts"]]
    total = memory["total_bytes"]
    return ", ".join(parts) + ("" if total is None else f"; {format_size(total)} in all")


def _advice(advice: list[dict[str, Any]], width: int) -> list[str]:
    if not advice:
        return []
    found = ["", "ADVICE"]
    for each in advice:
        about = f"{short_id(each['run'])}: " if each["run"] else ""
        found += textwrap.wrap(
            f"! {about}{each['text']}", width, subsequent_indent="  ", break_on_hyphens=False
        )
    return found


def _queue(queue: list[dict[str, Any]], *, operator: bool) -> list[str]:
    if not queue:
        return ["", "QUEUE    nothing waits"]
    found = ["", "QUEUE"]
    for each in queue[:8]:
        what = printable(each["name"] or (short_id(each["run"]) if each["run"] else "sampling"))
        whose = f"{each['tenant']}  " if operator else ""
        found.append(
            f"  {what:<20.20}  {whose}{each['count']:>4}  {span(each['waited_s']):>6}  "
            f"{each['reason']}"
        )
    return [*found, f"  and {len(queue) - 8} more"] if len(queue) > 8 else found


def _runs(runs: list[dict[str, Any]], width: int, *, plain: bool, operator: bool) -> list[str]:
    if not runs:
        return ["", "RUNS     none yet"]
    whose = 12 if operator else 0
    room = max(8, width - 62 - whose)
    heading = f"  {'RUN':<20}  {'TENANT':<10}  " if operator else f"  {'RUN':<20}  "
    found = ["", "RUNS", f"{heading}{'STATE':<8}{'STEP':>7}{'LOSS':>10}{'TOKENS/S':>10}   LOSS"]
    for run in sorted(runs, key=lambda each: each["state"] == "ended"):
        name = printable(run["name"] or short_id(run["run"]))
        tenant = f"{run['tenant']:<10.10}  " if operator else ""
        loss = "" if run["last_loss"] is None else number(run["last_loss"])
        speed = run["tokens_per_s"] if run["state"] == "live" else None
        curve = spark(run["spark"]["y"], room, plain=plain)
        mark = "!" if run["advice"] else " "
        found.append(
            f"{mark} {name:<20.20}  {tenant}{run['state']:<8}{run['step']:>7}{loss:>10}"
            f"{'' if speed is None else format_count(round(speed)):>10}   {curve}"
        )
    return found


def bar(part: float, width: int, *, plain: bool = False) -> str:
    """A part of 1 as a bar."""
    full = round(min(1.0, max(0.0, part)) * width)
    return ("#" if plain else "█") * full + ("." if plain else "░") * (width - full)


def span(seconds: float) -> str:
    """A time in one unit: `450 ms`, `12 s`, `3 min`, `5 h`, `2 d`."""
    if seconds < 1:
        return f"{1000 * max(0.0, seconds):.0f} ms"
    for unit, length, most in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < most:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"
