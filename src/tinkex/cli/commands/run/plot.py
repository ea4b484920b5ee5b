"""`tinkex run plot`: curves of one or several runs as a picture, or every point as a table."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import click

from tinkex.cli.commands.run.figures import Figure, Line, Panel, png, svg
from tinkex.cli.commands.run.watch import METRICS, curve_of
from tinkex.cli.errors import CliError
from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import command
from tinkex.cli.listings import dashboard
from tinkex.cli.listings.csv_file import write_csv
from tinkex.cli.listings.naming import find_run, short_id
from tinkex.cli.terminal.charts import Curve
from tinkex.cli.terminal.output import LineOutput
from tinkex.cli.whole_file import write_whole

_BUCKETS = 1200
_CSV_POINTS = 10_000
_DRAWN = {".svg": svg, ".png": png}


class Plotted(LineOutput):
    """A file that was written."""

    def __init__(self, destination: Path, runs: list[str], metrics: list[str], points: int) -> None:
        self.facts: dict[str, Any] = {
            "destination": str(destination),
            "runs": runs,
            "metrics": metrics,
            "points": points,
        }

    def to_dict(self) -> dict[str, Any]:
        return self.facts

    def lines(self) -> list[str]:
        metrics = ", ".join(self.facts["metrics"])
        return [f"{self.facts['destination']}: {metrics}, {self.facts['points']:,} points"]


@command
@click.argument("run_ids", metavar="RUN_ID...", nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="Where to write: NAME.svg, NAME.png (needs tinkex[plot]) or NAME.csv.",
)
@METRICS
@click.option("--x", type=click.Choice(["step", "time"]), default="step", show_default=True)
@click.option("--log", is_flag=True, help="Draw values on a logarithmic scale.")
@click.option("--title", help="What stands above the picture (default: the run's name).")
def plot(
    context: CommandContext,
    run_ids: tuple[str, ...],
    output: Path,
    metrics: tuple[str, ...],
    x: str,
    log: bool,
    title: str | None,
) -> Plotted:
    """Save runs' curves as a picture, a panel for each metric, or all points as a table.

    Several runs are drawn into the same panels. A table is of one run and has every point there is,
    all metrics unless some are named.

    Example: tinkex run plot varn -m loss -o loss.svg
    """
    kind = output.suffix.lower()
    if kind not in (".csv", *_DRAWN):
        raise click.UsageError(f"--output {output}: end it in .svg, .png or .csv")
    if kind == ".csv" and len(run_ids) > 1:
        raise click.UsageError("A table is of one run: give one RUN_ID, or draw a picture.")
    details = [dashboard.read(context, f"runs/{find_run(context, run_id)}") for run_id in run_ids]
    chosen = _chosen(details, metrics, every=kind == ".csv")
    if kind == ".csv":
        columns, rows = _table(context, details[0]["run"], chosen)
        write_csv(context, str(output), columns, rows)
        points = len(rows)
    else:
        figure = _figure(context, details, chosen, x, log, title)
        _write(output, _DRAWN[kind](figure))
        points = figure.points
    return Plotted(output, [run["run"] for run in details], chosen, points)


def _write(output: Path, content: bytes) -> None:
    try:
        write_whole(output, content)
    except OSError as error:
        raise CliError(f"Failed to write {output}", f"Details: {error}") from error


def _chosen(runs: list[dict[str, Any]], metrics: tuple[str, ...], *, every: bool) -> list[str]:
    known = list(dict.fromkeys(metric["name"] for run in runs for metric in run["metrics"]))
    if not known:
        raise CliError("There is nothing to draw: no step has ended yet")
    if missing := [name for name in metrics if name not in known]:
        raise CliError(
            f"There is no metric {missing[0]!r}", f"There are: {', '.join(known)}", exit_code=2
        )
    return list(metrics) or (known if every else known[:1])


def _figure(
    context: CommandContext,
    runs: list[dict[str, Any]],
    metrics: list[str],
    x: str,
    log: bool,
    title: str | None,
) -> Figure:
    wanted = {"metrics": ",".join(metrics), "x": x, "buckets": _BUCKETS}
    found = [dashboard.read(context, f"runs/{run['run']}/history", **wanted) for run in runs]
    names = [run["name"] or short_id(run["run"]) for run in runs]
    panels = []
    for metric in metrics:
        lines = [
            Line(name, _along(history["series"][metric], x, runs[0]["created_at"]))
            for name, history in zip(names, found, strict=True)
            if metric in history["series"]
        ]
        panels.append(Panel(metric, lines))
    x_text = "step" if x == "step" else "minutes since the first run began"
    points = sum(history["points"] for history in found)
    return Figure(title or ", ".join(names), x_text, panels, log, points)


def _along(series: dict[str, Any], x: str, start: float) -> Curve:
    curve = curve_of(series)
    if x == "step":
        return curve
    return Curve([(at - start) / 60 for at in curve.x], curve.low, curve.high, curve.mean)


def _table(
    context: CommandContext, run: str, metrics: list[str]
) -> tuple[list[str], list[list[Any]]]:
    """Every point by the time it was made: steps may repeat."""
    whole = dashboard.read(context, f"runs/{run}/history", metrics="at", x="time", buckets=1)
    low, high = whole["from"], whole["to"]
    parts = max(1, -(-whole["points"] // _CSV_POINTS))
    edges = [low + (high - low) * part / parts for part in range(parts + 1)]
    rows: dict[float, dict[str, float]] = {}
    for start, end in itertools.pairwise(edges):
        for name, at, value in _points(context, run, metrics, start, end):
            rows.setdefault(at, {})[name] = value
    columns = ["step", *metrics]
    return ["time", *columns], [
        [at, *(values.get(name) for name in columns)] for at, values in sorted(rows.items())
    ]


def _points(
    context: CommandContext, run: str, metrics: list[str], start: float, end: float
) -> list[tuple[str, float, float]]:
    """(metric, time, value) of a stretch; only the newest of a long history are single points."""
    query = {"x": "time", "from": start, "to": end, "buckets": 2 * _CSV_POINTS}
    found = []
    for first in range(0, len(metrics), 50):
        names = ",".join(["step", *metrics[first : first + 50]])
        series = dashboard.read(context, f"runs/{run}/history", metrics=names, **query)["series"]
        for name, curve in series.items():
            found += [(name, *pair) for pair in zip(curve["x"], curve["mean"], strict=True)]
    return found
