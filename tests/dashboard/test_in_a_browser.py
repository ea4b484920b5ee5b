"""The dashboard in a real browser, over a real server on which a small model is trained."""

from __future__ import annotations

import hashlib
import json
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tinkex
from support import dashboard as scene
from support.browser import Visitor, chromium
from support.live_server import LiveServer, live_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

ALICE, MALLORY = "tml-alice", "tml-mallory"
SECRET = "the launch code of alice"
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
AXE_SHA256 = "20c09fe157a8a34a30e241aaa1fcdade657734f08ab379ecfbeb7d45cc46e878"  # 4.14.0
VIEWS = {
    "now": "Now",
    "runs": "Runs",
    "samples": "Samples",
    "playground": "Playground",
    "timeline": "Timeline",
    "checkpoints": "Checkpoints",
    "usage": "Usage",
}


@dataclass
class World:
    server: LiveServer
    alice: scene.Person
    training: tinkex.TrainingClient
    saved: str

    @property
    def run(self) -> str:
        return str(self.training.model_id)

    def api(self, path: str, key: str = ALICE) -> Any:
        request = urllib.request.Request(
            f"{self.server.url}/api/dashboard/{path}", headers={"x-api-key": key}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def world(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home = tmp_path_factory.mktemp("dashboard") / "home"
    with live_server(home, "--model", scene.MODEL) as server:
        alice = scene.Person(server.url, ALICE)
        training = alice.start(scene.HOSTILE)
        scene.train(training, 6)
        training.save_state("first").result()
        saved = scene.sample(training, "drawn", f"{SECRET} {scene.HOSTILE}")
        yield World(server, alice, training, saved)
        alice.close()


@pytest.fixture(scope="module")
def owner(browser: Browser, world: World) -> Visitor:
    visitor = Visitor(browser, world.server.url)
    visitor.come(scene.link(world.server))
    return visitor


def test_the_numbers_on_the_page_are_those_of_the_api(owner: Visitor, world: World) -> None:
    run = world.api(f"runs/{world.run}")
    assert run["step"] == 6
    text = owner.open(f"runs/{world.run}", scene.HOSTILE)
    step, loss = (owner.page.inner_text(f'[data-fact="{name}"]') for name in ("step", "loss"))
    assert (int(step), float(loss)) == (6, _shown(run["last_loss"]))
    assert "first" in text
    owner.page.get_by_role("img", name="loss. ").first.wait_for()
    label = owner.page.get_by_role("img", name="loss. ").first.get_attribute("aria-label") or ""
    history = world.api(f"runs/{world.run}/history?metrics=loss")["series"]["loss"]
    drawn = re.search(r"last ([\d.]+), lowest ([\d.]+), highest ([\d.]+)\.", label)
    assert drawn is not None, label
    wanted = history["mean"][-1], min(history["min"]), max(history["max"])
    assert tuple(map(float, drawn.groups())) == tuple(map(_shown, wanted))
    for checkpoint in run["checkpoints"]:
        assert f"{checkpoint['size_bytes'] / 1024:.0f} KiB" in text
    usage = world.api("usage")
    trained = sum(hour["training"] for hour in usage["usage"])
    owner.open("usage", "Usage")
    owner.page.get_by_role("cell", name=f"{trained:,}").wait_for()


def _shown(value: float) -> float:
    """Four digits, as the page writes numbers."""
    return float(f"{value:.4g}")


def test_hostile_names_prompts_and_samples_are_text_and_nothing_else(
    owner: Visitor, world: World
) -> None:
    for place, heading in VIEWS.items():
        owner.open(place, heading)
    owner.open("samples", "Samples")
    shown = owner.page.get_by_text(SECRET).first
    shown.wait_for()
    assert scene.HOSTILE in shown.inner_text()
    owner.open("runs", "Runs")
    owner.page.get_by_role("link", name=scene.HOSTILE).wait_for()
    assert owner.page.evaluate("window.hacked") is None
    assert owner.page.locator("img, iframe, main script").count() == 0
    assert owner.blame() == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_view_is_fit_for_screen_readers_keyboards_and_narrow_screens(
    owner: Visitor, world: World, dark: bool
) -> None:
    source = AXE.read_bytes()
    assert hashlib.sha256(source).hexdigest() == AXE_SHA256
    page, problems = owner.page, list[str]()
    page.emulate_media(color_scheme="dark" if dark else "light")
    for number, (place, heading) in enumerate({**VIEWS, f"runs/{world.run}": ""}.items(), 1):
        page.set_viewport_size({"width": 1280, "height": 800})
        if heading:
            page.keyboard.press(str(number))
        else:
            page.goto(f"{owner.url}/#/{place}")
        page.get_by_role("heading", level=1, name=heading or scene.HOSTILE).wait_for()
        page.locator("main .card").first.wait_for()
        problems += [f"{place}: {one}" for one in _found_by_axe(page, source.decode())]
        page.set_viewport_size({"width": 360, "height": 700})
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            problems.append(f"{place}: wider than a narrow screen")
    page.set_viewport_size({"width": 1280, "height": 800})
    assert problems + owner.blame() == []


@pytest.mark.parametrize("width", [1024, 1200, 1280, 1440])
def test_no_column_of_a_table_is_out_of_sight_on_a_laptop(owner: Visitor, width: int) -> None:
    owner.page.set_viewport_size({"width": width, "height": 800})
    for place in ("runs", "checkpoints"):
        owner.open(place, VIEWS[place])
        table = owner.page.locator("main .wrap").first
        table.wait_for()
        assert table.evaluate("it => it.scrollWidth - it.clientWidth") <= 0, place
    owner.page.set_viewport_size({"width": 1280, "height": 800})


def test_a_narrow_screen_shows_which_view_is_open(owner: Visitor) -> None:
    owner.page.set_viewport_size({"width": 360, "height": 700})
    for place, heading in VIEWS.items():
        owner.open(place, heading)
        link = owner.page.get_by_role("navigation").get_by_role("link", name=heading)
        box, nav = link.bounding_box(), owner.page.get_by_role("navigation").bounding_box()
        assert box is not None
        assert nav is not None
        assert nav["x"] <= box["x"] + 1, place
        assert box["x"] + box["width"] <= nav["x"] + nav["width"] + 1, place
    owner.page.set_viewport_size({"width": 1280, "height": 800})


def test_what_is_shown_to_type_works_where_nothing_is_configured(
    owner: Visitor, world: World
) -> None:
    owner.open("checkpoints", "Checkpoints")
    owner.page.get_by_text("Show", exact=True).first.click()
    assert f"tinkex checkpoint download --base-url {world.server.url} tinker://" in owner.text


def _found_by_axe(page: Any, source: str) -> list[str]:
    """Through the tools' own channel: the page's policy would not let a script in."""
    page.evaluate(f"() => {{ {source}\n window.axe = axe; }}")
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']}: {node['html'][:200]} {node['failureSummary']}"
        for one in found["violations"]
        for node in one["nodes"]
    ]


def test_live_updates_arrive_and_a_restart_is_survived(browser: Browser, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with live_server(home, "--model", scene.MODEL) as server:
        visitor = Visitor(browser, server.url)
        visitor.sign_in(ALICE)
        person = scene.Person(server.url, ALICE)
        training = person.start("live")
        run, port = str(training.model_id), server.url.rpartition(":")[2]
        visitor.open(f"runs/{run}", "live")
        visitor.page.get_by_text("No step was finished yet").wait_for()
        scene.train(training, 2)
        _shows_step(visitor, 2)
    visitor.page.get_by_text("Reconnecting").wait_for()
    away = visitor.page.get_by_text("The server does not answer. All this is of")
    away.wait_for()
    with live_server(home, "--model", scene.MODEL, "--port", port):
        visitor.page.get_by_text("Live", exact=True).wait_for()
        away.wait_for(state="detached")
        scene.train(training, 1)
        _shows_step(visitor, 3)
        person.close()
        assert visitor.page.evaluate("window.blame") == []
    visitor.context.close()


def test_where_streams_are_held_back_the_page_polls(browser: Browser, world: World) -> None:
    visitor = Visitor(browser, world.server.url)
    held: list[Any] = []
    visitor.page.route("**/api/dashboard/events", lambda route: held.append(route))
    visitor.sign_in(ALICE)
    visitor.page.get_by_text("Polling", exact=True).wait_for()
    assert held, "a stream was tried before"
    training = world.alice.start("polled")
    visitor.open(f"runs/{training.model_id}", "polled")
    visitor.page.get_by_text("No step was finished yet").wait_for()
    scene.train(training, 1)
    _shows_step(visitor, 1)
    assert visitor.blame() == []
    visitor.context.close()


def _shows_step(visitor: Visitor, step: int) -> None:
    visitor.page.locator(f'[data-fact="step"]:text-is("{step}")').wait_for()


def test_another_tenants_things_never_appear(browser: Browser, world: World) -> None:
    mallory = scene.Person(world.server.url, MALLORY)
    own = mallory.start("mallory's own")
    visitor = Visitor(browser, world.server.url)
    heard: list[str] = []
    visitor.page.on("response", lambda answer: heard.append(_body(answer)))
    visitor.sign_in(MALLORY)
    session = world.run.partition(":")[0]
    for place, heading in {**VIEWS, f"samples/{world.run}": "Samples"}.items():
        visitor.open(place, heading)
    visitor.open("runs", "Runs")
    visitor.page.get_by_role("link", name="mallory's own").wait_for()
    visitor.page.goto(f"{visitor.url}/#/runs/{world.run}")
    visitor.page.get_by_role("alert").first.wait_for()
    visitor.page.goto(f"{visitor.url}/#/timeline/{session}")
    visitor.page.get_by_role("alert").first.wait_for()
    everything = "\n".join(heard)
    assert str(own.model_id) in everything
    for secret in (SECRET, "onerror", "first"):
        assert secret not in everything
    mallory.close()
    visitor.context.close()


def _body(answer: Any) -> str:
    """What the API said; the stream of events does not end, and is left out."""
    if "/api/" not in answer.url or answer.url.endswith("/events"):
        return ""
    return "" if answer.status >= 400 else str(answer.text())


def test_a_zoom_asks_for_its_range_and_a_long_run_for_no_more_than_its_pixels(
    owner: Visitor, world: World
) -> None:
    asked: list[str] = []
    owner.page.on("request", lambda request: asked.append(request.url))
    owner.open(f"runs/{world.run}", scene.HOSTILE)
    chart = owner.page.get_by_role("img", name="loss. ").first
    chart.locator("canvas").wait_for()
    with owner.page.expect_request(lambda request: "from=2&to=5" in request.url):
        chart.press("+")
    owner.page.get_by_role("button", name="Show all").wait_for()
    histories = [url for url in asked if "/history?" in url]
    assert histories
    assert all("buckets=600" in url for url in histories)
    chart.press("0")
    owner.page.get_by_role("button", name="Show all").wait_for(state="detached")


def test_the_playground_answers_from_two_models_side_by_side(owner: Visitor, world: World) -> None:
    page = owner.page
    owner.open(f"playground/{world.saved}", "Playground")
    page.get_by_role("button", name="Completion").click()
    page.get_by_label("Beside it").select_option(scene.MODEL)
    page.get_by_label("Most tokens").fill("8")
    page.get_by_label("Text to continue").fill("The quick")
    page.get_by_role("button", name="Send").click()
    for model in (world.saved, scene.MODEL):
        lane = page.get_by_label(f"Answers of {model}")
        lane.get_by_text(re.compile("· (length|stop)")).wait_for()
    assert owner.blame() == []
