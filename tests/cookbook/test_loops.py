"""The public cookbook's own loops run against our server, with the official SDK and with ours."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.ending import ended_well
from support.live_server import LiveServer, live_server
from tinkex.server.engines.model_sources import default_cache, resolve

SCRIPT = Path(__file__).parent / "loops.py"
ALIASES = {
    "Qwen/Qwen3-8B": "tinkex/tiny-qwen3",
    "Qwen/Qwen3-30B-A3B": "tinkex/tiny-qwen3-moe",
    "Qwen/Qwen3.5-9B": "tinkex/tiny-qwen3.5",
}
OTHER_KINDS = [*ALIASES][1:]
LIMIT_S = 240

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    aliases = [part for pair in ALIASES.items() for part in ("--alias", "=".join(pair))]
    with live_server(tmp_path_factory.mktemp("cookbook") / "home", *aliases) as server:
        yield server


@pytest.fixture(scope="module", params=["official", "tinkex"])
def report(
    request: pytest.FixtureRequest, server: LiveServer, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What all loops logged with one SDK; run once, looked at by every test."""
    return run_loops(request.param, server, tmp_path_factory.mktemp(f"loops-{request.param}"))


def run_loops(sdk: str, server: LiveServer, work: Path, *models: str) -> dict[str, Any]:
    folder = resolve("tinkex/tiny-qwen3", default_cache(os.environ), os.environ).folder
    done = subprocess.run(
        [sys.executable, str(SCRIPT), sdk, server.url, str(folder), str(work), *models],
        env={**os.environ, "TINKER_API_KEY": f"tml-cookbook-{sdk}"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended_well(done.returncode, official=sdk == "official"), done.stderr[-6000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["sdk"] == ("tinker" if sdk == "official" else "tinkex")
    return found


def test_the_loops_learn_on_a_mixture_of_experts_and_on_a_hybrid(
    server: LiveServer, tmp_path: Path
) -> None:
    report = run_loops("official", server, tmp_path, *OTHER_KINDS)
    for model in OTHER_KINDS:
        losses = report[model]["supervised"]["losses"]
        assert losses[-1] < losses[0], model
        assert report[model]["reinforcement"]["rewards"]
        drift = report[model]["reinforcement"]["drift"]
        assert all(each < 1e-3 for each in drift), "sampler and trainer numbers differ"
        losses = report[model]["preferences"]["losses"]
        assert losses[-1] < losses[0], model


def test_supervised_training_learns_and_saves(report: dict[str, Any]) -> None:
    losses = report["supervised"]["losses"]
    assert losses[-1] < losses[0]
    assert report["supervised"]["checkpoint"]["state_path"].startswith("tinker://")


def test_reinforcement_learning_trains_on_its_own_samples(report: dict[str, Any]) -> None:
    found = report["reinforcement"]
    assert found["rewards"]
    assert all(drift < 1e-3 for drift in found["drift"]), "sampler and trainer numbers differ"


def test_preference_training_starts_at_the_logarithm_of_two(report: dict[str, Any]) -> None:
    losses = report["preferences"]["losses"]
    assert math.isclose(losses[0], math.log(2), abs_tol=5e-3)
    assert losses[-1] < losses[0]


def test_distillation_measures_its_distance_to_the_teacher(report: dict[str, Any]) -> None:
    assert all(math.isfinite(value) for value in report["distillation"]["teacher_kl"])
    assert report["distillation"]["teacher_kl"]


def test_an_environment_of_several_turns_is_trained_on(report: dict[str, Any]) -> None:
    assert report["turns"]["turns"][0] > 1
    assert all(drift < 1e-3 for drift in report["turns"]["drift"])


def test_a_teachers_best_tokens_are_learnt_as_soft_targets(report: dict[str, Any]) -> None:
    found = report["self_distillation"]
    assert len(found["entropy"]) == 2
    assert all(value > 0 for value in [*found["entropy"], *found["gradients"]])


def test_weights_are_exported_decrypted_and_merged(report: dict[str, Any]) -> None:
    found = report["export"]
    assert {"adapter_config.json", "adapter_model.safetensors"} <= set(found["adapter"])
    assert {"config.json", "model.safetensors"} <= set(found["merged"])
    if report["sdk"] == "tinkex":
        assert "adapter_model.safetensors" in found["archive"]
