"""`top`, `run watch` and `run plot`: drawn in 80 columns, once in a pipe, live on a terminal."""

from __future__ import annotations

import csv
import json
import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from support.command_line import CommandLine, FakeClients, FakeRest, done, failed, status_error
from support.json_shape import mismatches, shapes
from tinkex.cli.commands.run import figures
from tinkex.cli.terminal import charts
from tinkex.cli.terminal.cells import cells_wide

RUN = "1f3a90cc-0000-4000-8000-000000000000:train:0"
ADVICE = {
    "kind": "exploding_norm",
    "severity": "warning",
    "run": RUN,
    "tenant": "alice",
    "since": 1000.0,
    "text": "The gradient norm is 48 in step 40; before: 1.2. Lower the learning rate, set "
    "grad_clip_norm, or look at the data of this step.",
}
STEPS = list(range(1, 41))
LOSS = [3.0 * math.exp(-step / 15) + 0.1 for step in STEPS]
SPEEDS = {"training": 8123.4, "prefill": 1520.0, "sampled": 990.5}
ENGINE = {
    "name": "Qwen/Qwen3-0.6B",
    "model": "Qwen/Qwen3-0.6B",
    "draining": None,
    "phase": "ready",
    "reason": "",
    "device": "cuda:0",
    "dtype": "bfloat16",
    "parameters": 596_049_920,
    "max_context": 40_960,
    "deaths": 0,
    "busy": 0.82,
    "operations": 4,
    "samples": 128,
    "runs": {"resident": 3, "places": 64},
    "adapters": 5,
    "memory": {
        "total_bytes": 150_323_855_360,
        "parts": [
            {"name": "model", "bytes": 1_192_099_840},
            {"name": "adapters", "bytes": 104_857_600},
            {"name": "cache in use", "bytes": 83_886_080},
            {"name": "cache free", "bytes": 4_211_081_216},
        ],
    },
    "cache": {"used_pages": 40, "total_pages": 2048},
}
DOWN = {
    **ENGINE,
    "name": "m2",
    "model": "m2",
    "phase": "restarting",
    "reason": "the engine stopped (signal 9)",
}
WAITING = {
    "kind": "training",
    "run": RUN,
    "name": None,
    "tenant": "alice",
    "model": "Qwen/Qwen3-0.6B",
    "count": 3,
    "running": 1,
    "state": "active",
    "reason": "waiting for seq_id 7, which has not arrived; it is skipped in 55 s",
    "waited_s": 4.2,
}
NOW = {
    "at": 12_000.0,
    "started_at": 1_200.0,
    "version": "0.2.0",
    "viewer": {"tenant": "alice", "operator": False},
    "engines": [ENGINE, DOWN],
    "queue": [WAITING],
    "tokens_per_s": SPEEDS,
    "totals": {"training": 1, "prefill": 2, "sampled": 3},
    "tenants": [],
    "limits": [],
    "disk": {"free_bytes": 1},
    "advice": [ADVICE],
}
SHOWN = {
    "run": RUN,
    "name": "a \x1b[31mred\x1b[0m herring",
    "note": None,
    "tenant": "alice",
    "session": "s",
    "model": "Qwen/Qwen3-0.6B",
    "rank": 32,
    "state": "live",
    "created_at": 11_000.0,
    "last_request_at": 12_000.0,
    "ended_at": None,
    "step": 40,
    "last_loss": LOSS[-1],
    "tokens": 491_520,
    "tokens_per_s": 8123.4,
    "parent": None,
    "spark": {"metric": "loss", "x": STEPS, "y": LOSS},
    "advice": [ADVICE],
}
ENDED = {**SHOWN, "run": RUN.replace("1f3a", "2b00"), "name": None, "state": "ended", "advice": []}


def series(values: list[float], xs: list[float]) -> dict[str, Any]:
    return {"x": xs, "min": values, "max": values, "mean": values, "count": [1] * len(values)}


class FakeDashboard(FakeRest):
    """A server with a dashboard, whose run takes a step with every look."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.metrics = ["loss", "learning_rate"]
        self.ends_after = 10**9

    def read_dashboard(self, path: str, query: Mapping[str, Any] | None = None) -> Future[Any]:
        self.asked.append(path)
        if path == "now":
            return done(NOW)
        if path == "runs":
            return done({"runs": [ENDED, SHOWN], "cursor": {}})
        if path == "server/history":
            curve = series([1.0, 5.0, 3.0], [1.0, 2.0, 3.0])
            return done({"series": {"training_tokens_per_s": curve}})
        if path.endswith("/history"):
            return done(self._history(query or {}))
        looks = sum(each == path for each in self.asked)
        state = "ended" if looks > self.ends_after else "live"
        known = [{"name": name, "last": 1.0, "help": None} for name in self.metrics]
        return done({**SHOWN, "state": state, "metrics": known})

    def _history(self, query: Mapping[str, Any]) -> dict[str, Any]:
        time = query.get("x") == "time"
        xs = [11_000.0 + step if time else float(step) for step in STEPS]
        values = {
            "loss": LOSS,
            "learning_rate": [0.001] * 40,
            "step": [float(step) for step in STEPS],
            "at": xs,
        }
        wanted = [name for name in query["metrics"].split(",") if name in values]
        found = {name: series(values[name], xs) for name in wanted}
        return {"x": query.get("x"), "from": xs[0], "to": xs[-1], "points": 40, "series": found}


@pytest.fixture
def rest() -> FakeDashboard:
    return FakeDashboard()


@pytest.fixture
def tinkex(rest: FakeDashboard, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "30")
    return CommandLine(FakeClients(rest=rest))


def interrupted_after(looks: int) -> Callable[[float], None]:
    """A wait that Ctrl-C ends at last."""
    waits = iter(range(looks))

    def sleep(_: float) -> None:
        if next(waits, None) is None:
            raise KeyboardInterrupt

    return sleep


def test_top_in_a_pipe_is_one_picture_of_80_columns(
    tinkex: CommandLine, matches_stored: Callable[[str, str], None]
) -> None:
    ran = tinkex("top")
    assert ran.code == 0
    assert max(cells_wide(line) for line in ran.out.splitlines()) <= 80
    matches_stored("top", ran.out)


@pytest.mark.parametrize("columns", [40, 60, 200])
def test_top_keeps_to_any_width(
    tinkex: CommandLine, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = tinkex("top").out.splitlines()
    assert max(cells_wide(line) for line in lines) <= columns


def test_top_on_a_terminal_draws_until_interrupted_and_leaves_it_as_it_was(
    rest: FakeDashboard, tinkex: CommandLine
) -> None:
    tinkex.terminal = True
    tinkex.extra = {"sleep": interrupted_after(2)}
    ran = tinkex("top")
    assert ran.code == 0
    assert rest.asked.count("now") == 3
    assert ran.out.startswith("\x1b[?1049h\x1b[?25l")
    assert ran.out.endswith("\x1b[?25h\x1b[?1049l")
    assert "\x1b[31m" not in ran.out, "a run's name must not drive the terminal"
    assert ran.err == ""


def test_top_once_draws_once(rest: FakeDashboard, tinkex: CommandLine) -> None:
    tinkex.terminal = True
    tinkex.extra = {"sleep": interrupted_after(0)}
    ran = tinkex("top", "--once")
    assert ran.code == 0
    assert rest.asked.count("now") == 1
    assert "\x1b" not in ran.out, "on a screen of its own it would be gone with it"
    assert "RUNS" in ran.out


def test_top_for_programs_is_what_the_server_said(tinkex: CommandLine) -> None:
    shown = json.loads(tinkex("top", "--json").out)
    assert mismatches(shown, shapes()["top"]) == []
    assert shown["now"] == NOW


def test_watch_draws_the_run_and_what_is_wrong_with_it(
    tinkex: CommandLine, matches_stored: Callable[[str, str], None]
) -> None:
    ran = tinkex("run", "watch", RUN)
    assert max(cells_wide(line) for line in ran.out.splitlines()) <= 80
    matches_stored("run-watch", ran.out)


def test_watch_ends_with_the_run_and_its_last_picture_stays(
    rest: FakeDashboard, tinkex: CommandLine
) -> None:
    rest.ends_after = 3
    tinkex.terminal = True
    tinkex.extra = {"sleep": lambda _: None}
    ran = tinkex("run", "watch", RUN, "-m", "loss", "--log")
    assert ran.code == 0
    last = ran.out.rpartition("\x1b[?1049l")[2]
    assert "ended" in last
    assert "⠉" in last
    assert "learning_rate" not in last


def test_watch_for_programs_is_what_the_server_said(tinkex: CommandLine) -> None:
    shown = json.loads(tinkex("run", "watch", RUN, "--json").out)
    assert mismatches(shown, shapes()["run watch"]) == []
    assert shown["history"]["loss"]["mean"] == LOSS


def test_a_metric_that_is_not_there_is_named_with_those_that_are(tinkex: CommandLine) -> None:
    for line in (["run", "watch", RUN], ["run", "plot", RUN, "-o", "x.svg"]):
        ran = tinkex(*line, "-m", "bliss")
        assert ran.code == 2
        assert "'bliss'" in ran.err
        assert "loss, learning_rate" in ran.err


def test_a_run_without_a_step_is_no_error_to_watch_and_one_to_plot(
    rest: FakeDashboard, tinkex: CommandLine, tmp_path: Path
) -> None:
    rest.metrics = []
    assert "No step has ended yet" in tinkex("run", "watch", RUN).out
    ran = tinkex("run", "plot", RUN, "-o", str(tmp_path / "x.svg"))
    assert ran.code == 1
    assert not list(tmp_path.glob("x*"))


def test_a_server_without_a_dashboard_is_said_to_have_none(
    rest: FakeDashboard, tinkex: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        rest, "read_dashboard", lambda *_: failed(status_error(404, "Not Found")), raising=False
    )
    for line in (["top"], ["run", "watch", RUN], ["run", "plot", RUN, "-o", "x.csv"]):
        ran = tinkex(*line)
        assert ran.code == 1
        assert "keeps no histories" in ran.err


def test_a_table_has_every_point(tinkex: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    ran = tinkex("run", "plot", RUN, "-o", str(path), "--json")
    assert mismatches(json.loads(ran.out), shapes()["run plot"]) == []
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["time", "step", "loss", "learning_rate"]
    assert [float(row["loss"]) for row in rows] == LOSS
    assert [float(row["step"]) for row in rows] == STEPS


def test_a_picture_has_a_title_axes_and_a_legend_and_cannot_be_injected_into(
    tinkex: CommandLine, tmp_path: Path
) -> None:
    path = tmp_path / "loss.svg"
    hostile = "</title><script>alert(1)</script>"
    ran = tinkex(
        "run", "plot", RUN, "-o", str(path), "-m", "loss", "-m", "learning_rate", "--title", hostile
    )
    assert ran.code == 0
    tree = ElementTree.parse(path)
    space = "{http://www.w3.org/2000/svg}"
    texts = [text.text for text in tree.iter(f"{space}text")]
    assert hostile in texts
    assert {"step", "loss", "learning_rate"} <= set(texts)
    assert not list(tree.iter(f"{space}script"))
    line = next(tree.iter(f"{space}polyline")).attrib["points"].split()
    assert len(line) == 40
    heights = [float(point.split(",")[1]) for point in line]
    assert heights == sorted(heights), "a falling loss goes down the page"


def test_a_png_needs_matplotlib_and_says_so(
    tinkex: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    ran = tinkex("run", "plot", RUN, "-o", str(tmp_path / "x.png"))
    assert ran.code == 1
    assert "pip install 'tinkex[plot]'" in ran.err
    assert ".svg" in ran.err


@pytest.mark.parametrize("log", [[], ["--log"]])
def test_a_png_has_the_curves_in_their_colours(
    tinkex: CommandLine, tmp_path: Path, log: list[str]
) -> None:
    from matplotlib import image

    path = tmp_path / "x.png"
    ran = tinkex(
        "run",
        "plot",
        RUN,
        "-o",
        str(path),
        "-m",
        "loss",
        "-m",
        "learning_rate",
        *log,
        "--title",
        r"$\frac 漢",
    )
    assert (ran.code, ran.err) == (0, "")
    pixels = (image.imread(path)[..., :3] * 255).round().astype(int)
    height, width, _ = pixels.shape
    drawn = (pixels == [0x00, 0x72, 0xB2]).all(axis=2)
    rows = drawn.any(axis=1)
    assert width > 1000
    assert rows[: height // 2].any()
    assert rows[height // 2 :].any(), "a panel for each metric"
    left, right = (drawn[: height // 2, part].nonzero()[0].mean() for part in _halves(width))
    assert left < right, "a falling loss goes down the page"


def _halves(width: int) -> tuple[slice, slice]:
    return slice(0, width // 2), slice(width // 2, None)


def test_a_file_of_an_unknown_kind_is_refused_before_anything_is_asked(
    rest: FakeDashboard, tinkex: CommandLine
) -> None:
    ran = tinkex("run", "plot", RUN, "-o", "loss.jpg")
    assert ran.code == 2
    assert ".svg, .png or .csv" in ran.err
    assert not rest.asked


@pytest.mark.parametrize("values", [[1.0], [2.0, 2.0], [0.0, 0.0], [1e-9, 1e9], [-5.0, 5.0]])
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("plain", [False, True])
def test_any_curve_can_be_drawn(values: list[float], log: bool, plain: bool) -> None:
    xs = [float(n) for n in range(len(values))]
    curve = charts.Curve(xs, values, values, values)
    lines = charts.chart(curve, 40, 8, log=log, plain=plain)
    assert len(lines) == 8
    assert max(map(cells_wide, lines)) <= 40
    assert not plain or "".join(lines).isascii()
    assert len(charts.spark(values, 10, plain=plain)) == len(values)
    line = figures.Line("run", curve)
    figure = figures.Figure("t", "step", [figures.Panel("m", [line])], log)
    ElementTree.fromstring(figures.svg(figure))


def test_a_spark_shows_its_shape_in_the_room_there_is() -> None:
    assert charts.spark([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert charts.spark(list(range(800)), 8) == "▁▂▃▄▅▆▇█"
    assert charts.spark([], 8) == ""
    assert charts.spark([math.nan], 8) == ""
