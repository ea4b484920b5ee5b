"""`tinkex run watch`: a run's curves in the terminal, while it trains."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import click

from tinkex.cli.commands.top import EVERY, ONCE, Top, span
from tinkex.cli.errors import CliError
from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import command
from tinkex.cli.listings import dashboard
from tinkex.cli.listings.naming import find_run, short_id
from tinkex.cli.terminal.charts import Curve, chart, number
from tinkex.cli.terminal.formats import format_count
from tinkex.cli.terminal.keys import ended_by_q
from tinkex.cli.terminal.screens import Screen, watch

METRICS = click.option(
    "-m",
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help="A metric to draw; repeatable (default: the loss, then what there is room for).",
)
USUAL = ("loss", "grad_norm", "learning_rate", "tokens_per_s", "entropy", "sampler_gap")
_LEAST_HEIGHT = 7


class Watched(Top):
    """A run as it was drawn last."""


@command
@click.argument("run_id")
@METRICS
@click.option("--log", is_flag=True, help="Draw values on a logarithmic scale.")
@ONCE
@EVERY
def watch_(
    context: CommandContext,
    run_id: str,
    metrics: tuple[str, ...],
    log: bool,
    once: bool,
    every: float,
) -> Watched:
    """Draw a run's curves in the terminal, until it ends, or q or Ctrl-C.

    RUN_ID may be the start of an id, as long as only one run starts so, or a run's name.

    Example: tinkex run watch varn -m loss -m grad_norm
    """
    run = find_run(context, run_id)
    screen = Screen(context.streams.out)
    width, height = screen.size
    last = Watched(_read(context, run, metrics, 2 * width))
    if context.is_json:
        return last

    def picture() -> tuple[Sequence[str], bool]:
        last.facts = _read(context, run, metrics, 2 * width)
        drawn = lines(last.facts, width, height - 1, log=log, plain=screen.is_plain)
        return drawn, last.facts["run"]["state"] == "ended"

    with ended_by_q(context.stdin, context.deps.sleep) as wait:
        shown = watch(screen, picture, every, once=once, wait=wait)
    if screen.is_live:
        screen.is_live = False
        screen.draw(shown)  # what was seen last stays in view
    return last


def _read(
    context: CommandContext, run: str, metrics: tuple[str, ...], buckets: int
) -> dict[str, Any]:
    details = dashboard.read(context, f"runs/{run}")
    known = [metric["name"] for metric in details["metrics"]]
    if missing := [name for name in metrics if name not in known]:
        raise CliError(
            f"The run has no metric {missing[0]!r}",
            f"It has: {', '.join(known)}" if known else "It has none yet.",
            exit_code=2,
        )
    chosen = metrics or tuple(name for name in USUAL if name in known)
    wanted = {"metrics": ",".join(chosen), "buckets": max(1, min(4000, buckets))}
    history = dashboard.read(context, f"runs/{run}/history", **wanted) if chosen else {}
    return {"run": details, "history": history.get("series", {})}


def lines(
    facts: dict[str, Any], width: int, height: int, *, log: bool = False, plain: bool = False
) -> list[str]:
    """The picture: the run in a line, advice, then as many charts as there is room for."""
    run, history = facts["run"], facts["history"]
    found = [_headline(run), *_advice(run, width)]
    if not history:
        return [*found, "", "No step has ended yet."]
    room = height - len(found)
    charts = max(1, min(len(history), room // _LEAST_HEIGHT))
    each = max(5, room // charts)
    for name, series in list(history.items())[:charts]:
        title = f"{name}  {number(series['mean'][-1])}"
        drawn = chart(curve_of(series), width, each - 1, log=log, plain=plain)
        found += [title, *drawn]
    return found


def curve_of(series: dict[str, Any]) -> Curve:
    return Curve(series["x"], series["min"], series["max"], series["mean"])


def _headline(run: dict[str, Any]) -> str:
    name = f"{run['name']}  " if run["name"] else ""
    speed = run["tokens_per_s"]
    parts = [
        f"{name}{short_id(run['run'])}",
        run["model"],
        run["state"],
        f"step {run['step']:,}",
        f"{format_count(run['tokens'])} tokens",
        *([f"{format_count(round(speed))}/s"] if speed and run["state"] == "live" else []),
        span(run["last_request_at"] - run["created_at"]),
    ]
    return "  ".join(parts)


def _advice(run: dict[str, Any], width: int) -> list[str]:
    return [
        line
        for each in run["advice"]
        for line in textwrap.wrap(
            f"! {each['text']}", width, subsequent_indent="  ", break_on_hyphens=False
        )
    ]
