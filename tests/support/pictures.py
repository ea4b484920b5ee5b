"""The pictures of the dashboard in the documents, taken from a real server in a real browser."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tinkex
from support import dashboard as scene
from support.browser import Visitor, chromium
from support.live_server import live_server

STEPS = 60


@dataclass(frozen=True)
class Picture:
    """A place on the page, with the heading that says it is there. `{run}` and the others are
    filled in with what was trained."""

    place: str
    heading: str
    dark: bool = False
    narrow: bool = False


PICTURES = {
    "now": Picture("now", "Now"),
    "runs": Picture("runs", "Runs"),
    "run": Picture("runs/{run}", "fox", dark=True),
    "compare": Picture("runs/{run},{other}", "fox"),
    "samples": Picture("samples", "Samples"),
    "playground": Picture("playground/{saved}", "Playground"),
    "timeline": Picture("timeline", "Timeline", dark=True),
    "usage": Picture("usage", "Usage"),
    "narrow": Picture("runs/{run}", "fox", narrow=True),
}


def take(folder: Path, steps: int = STEPS) -> None:
    """Train a little, look at everything, and write one PNG per picture."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as home,
        live_server(Path(home) / "home", "--model", scene.MODEL, "--engines", "2") as server,
        chromium() as browser,
    ):
        alice = scene.Person(server.url, "tml-alice")
        runs, names = _train(alice, steps)
        windows = {
            (dark, narrow): Visitor(
                browser, server.url, dark, *((390, 844) if narrow else (1280, 800))
            )
            for dark, narrow in {(one.dark, one.narrow) for one in PICTURES.values()}
        }
        first = next(iter(windows.values()))
        first.come(scene.link(server))
        for window in windows.values():
            if window is not first:
                window.sign_in("tml-alice")
        for name, picture in PICTURES.items():
            window = windows[picture.dark, picture.narrow]
            work = _work(alice, runs, steps) if picture.place == "now" else []
            _show(window, picture, names)
            window.page.screenshot(path=folder / f"{name}.png")
            for each in work:
                each.result()
        alice.close()


def _work(
    alice: scene.Person, runs: Sequence[tinkex.TrainingClient], steps: int
) -> list[tinkex.APIFuture[Any]]:
    """More than can be done at once, so that there is a queue to look at."""
    base = alice.service.create_sampling_client(base_model=scene.MODEL)
    prompt = tinkex.ModelInput.from_ints(list(scene.SENTENCE.encode()))
    asked = tinkex.SamplingParams(max_tokens=4 * steps)
    futures: list[Any] = [base.sample(prompt, 16, asked) for _ in range(4)]
    for training in runs:
        example = scene.lesson(training)
        futures += [training.forward_backward([example] * 8, "cross_entropy") for _ in range(steps)]
    return futures


def _show(window: Visitor, picture: Picture, names: dict[str, str]) -> None:
    window.open(picture.place.format(**names), picture.heading)
    window.page.locator("main .card").first.wait_for()
    if picture.place == "now":
        window.page.get_by_text("longest wait first").wait_for()
    if picture.place.startswith("playground"):
        _ask(window)
    if picture.place.startswith("runs/"):
        window.page.locator("canvas").first.wait_for()
    window.page.get_by_text("Live", exact=True).first.wait_for()
    window.page.wait_for_timeout(1500)


def _ask(window: Visitor) -> None:
    page = window.page
    page.get_by_role("button", name="Completion").click()
    page.get_by_label("Beside it").select_option(scene.MODEL)
    page.get_by_label("Most tokens").fill("60")
    page.get_by_label("Text to continue").fill("The quick brown")
    page.get_by_role("button", name="Send").click()
    for lane in page.get_by_label("Answers of").all():
        lane.get_by_text(re.compile("· (length|stop)")).wait_for()


def _train(
    alice: scene.Person, steps: int
) -> tuple[Sequence[tinkex.TrainingClient], dict[str, str]]:
    runs = {name: alice.start(name, rank) for name, rank in {"fox": 8, "fox-slow": 8}.items()}
    for name, rate in {"fox-slow": 4e-4, "fox": 1e-3}.items():
        scene.train(runs[name], steps // 2, rate)
        saved = runs[name].save_state(f"{steps // 2:04d}").result().path
        scene.train(runs[name], steps // 2, rate / 4)
    resumed = alice.service.create_training_client_from_state_with_optimizer(saved)
    alice.rest.rename_training_run(resumed.model_id, "fox-resumed").result()
    scene.train(resumed, steps // 3, 1e-3)
    _reinforce(resumed, 3)
    drawn = scene.sample(runs["fox"], f"{steps:04d}", "The quick brown")
    names = {"run": str(runs["fox"].model_id), "other": str(runs["fox-slow"].model_id)}
    return list(runs.values()), {**names, "saved": drawn}


def _reinforce(training: tinkex.TrainingClient, steps: int) -> None:
    """Steps on data with advantages, so that there is something to colour by them."""
    tokens = training.get_tokenizer().encode(scene.SENTENCE)
    length = len(tokens) - 1
    for step in range(steps):
        datum = tinkex.Datum(
            model_input=tinkex.ModelInput.from_ints(tokens[:-1]),
            loss_fn_inputs={
                "target_tokens": np.array(tokens[1:], np.int64),
                "logprobs": np.full(length, -1.0, np.float32),
                "advantages": np.cos(np.arange(length) / 6 + step).astype(np.float32),
            },
        )
        training.forward_backward([datum], "importance_sampling")
        training.optim_step(tinkex.AdamParams(learning_rate=1e-4)).result()
