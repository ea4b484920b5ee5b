"""The dashboard as its readers get it: a real Chromium at a `tinkex serve` with a long history.

    python benchmarks/dashboard.py

First paint, drawing a run of 100,000 points, the history behind it, and what keeping samples costs
a sample: two servers take turns, one of them keeps none.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from report import Row, write

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import tinkex
from support import dashboard
from support.browser import Visitor, chromium
from support.live_server import live_server
from tinkex.server.recording import folding
from tinkex.server.storage.database import connect, points
from tinkex.server.storage.database.points import Point

if TYPE_CHECKING:
    from playwright.sync_api import Browser

KEY = "tml-benchmark"
POINTS = 100_000
METRICS = ("loss", "grad_norm", "learning_rate", "update_norm", "tokens_per_s", "step_s")
RELOADS, READS, SAMPLES = 15, 5, 200
_WATCH = """
window.long = [];
new PerformanceObserver((list) => list.getEntries().forEach((entry) => long.push(entry.duration)))
  .observe({ type: "longtask", buffered: true });
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = a_run(Path(folder) / "home")
        fill(next((Path(folder) / "home").glob("*.db")), run)
        with live_server(Path(folder) / "home", "--model", dashboard.MODEL) as server:
            rows = [history_row(server.url, run)]
            with chromium() as browser:
                rows = [*page_rows(browser, server.url, dashboard.link(server), run), *rows]
        rows.extend(sample_rows(Path(folder)))
    write("dashboard", "The dashboard", rows)


def a_run(home: Path) -> str:
    """A home with one run in it; the run's id."""
    with live_server(home, "--model", dashboard.MODEL) as server:
        person = dashboard.Person(server.url, KEY)
        training = person.start("long")
        dashboard.train(training, 3)
        person.close()
        return str(training.model_id)


def fill(database: Path, run: str) -> None:
    """Continue the run's history to so many points, as the server keeps them."""
    connection = connect(database)
    for start in range(4, POINTS + 1, 5_000):
        connection.execute("BEGIN")
        for n in range(start, min(start + 5_000, POINTS + 1)):
            values = {name: math.sin(n / 700 + i) + 2 for i, name in enumerate(METRICS)}
            points.put(connection, run, Point(n, 2 * n, n, 1.7e9 + n, True, values))
        while (found := folding.next_fold(connection, run)) is not None:
            found.write(connection)
        connection.execute("COMMIT")
    connection.close()


def history_row(url: str, run: str) -> Row:
    address = f"{url}/api/dashboard/runs/{run}/history?metrics=loss&buckets=600"
    request = urllib.request.Request(address, headers={"X-API-Key": KEY})
    times = []
    for _ in range(READS):
        begun = time.perf_counter()
        with urllib.request.urlopen(request) as answer:
            answer.read()
        times.append(time.perf_counter() - begun)
    return Row("history: one metric of 100,000 points in 600 buckets", middle_ms(times), "ms")


def page_rows(browser: Browser, url: str, link: str, run: str) -> list[Row]:
    visitor = Visitor(browser, url)
    visitor.come(link)
    paints = []
    for _ in range(RELOADS):
        visitor.page.reload()
        visitor.page.get_by_role("heading", name="Now").wait_for()
        visitor.page.wait_for_timeout(200)  # the browser notes it a frame later
        paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        paints.append(visitor.page.evaluate(paint) / 1e3)
    visitor.page.evaluate(_WATCH)
    begun = time.perf_counter()
    visitor.open(f"runs/{run}", "long")
    visitor.page.locator("canvas").nth(len(METRICS) - 1).wait_for()
    drawn = time.perf_counter() - begun
    visitor.page.wait_for_timeout(500)
    longest = max(visitor.page.evaluate("window.long"), default=0.0)
    return [
        Row(
            "first contentful paint of a reload, median", middle_ms(paints), "ms", target="≤100 ms"
        ),
        Row("a run of 100,000 points: all its curves drawn after", drawn * 1e3, "ms"),
        Row("the page's longest task meanwhile (0: none over 50)", longest, "ms", target="≤50 ms"),
    ]


def sample_rows(folder: Path) -> list[Row]:
    """A short sample with and without samples kept, taking turns."""
    with ExitStack() as stack:
        asked = {}
        for name, more in (("kept", ()), ("not", ("--no-record-samples",))):
            arguments = ("--model", dashboard.MODEL, *more)
            server = stack.enter_context(live_server(folder / name, *arguments))
            service = tinkex.ServiceClient(base_url=server.url, api_key=KEY)
            stack.enter_context(service)
            asked[name] = service.create_sampling_client(base_model=dashboard.MODEL)
        times: dict[str, list[float]] = {"kept": [], "not": []}
        params = tinkex.SamplingParams(max_tokens=8)
        for _ in range(SAMPLES):
            for name, sampler in asked.items():
                begun = time.perf_counter()
                sampler.sample(tinkex.ModelInput.from_ints([1, 2, 3]), 1, params).result()
                times[name].append(time.perf_counter() - begun)
    kept, without = (middle_ms(times[name][20:]) for name in ("kept", "not"))
    return [Row("a sample of 8 tokens that is kept, against one that is not", kept, "ms", without)]


def middle_ms(times: list[float]) -> float:
    return statistics.median(times) * 1e3


if __name__ == "__main__":
    main()
