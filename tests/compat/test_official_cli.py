"""The official command line works against our server: what it prints comes from our routes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import tinker
from click.testing import CliRunner
from tinker.cli import __main__ as official

from compat.world import World
from support.live_server import live_server

MODEL = "tinkex/tiny-llama"
KEY = "tml-official-cli"

pytestmark = pytest.mark.slow

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with live_server(tmp_path_factory.mktemp("cli") / "home", "--model", MODEL) as server:
        world = World(tinker, server.url, MODEL, KEY)
        yield world
        world.close()


@pytest.fixture
def run(world: World, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command with JSON output and gives what it printed."""
    monkeypatch.setenv("TINKER_BASE_URL", world.base_url)
    monkeypatch.setenv("TINKER_API_KEY", KEY)

    def invoke(*arguments: str) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = CliRunner().invoke(official.cli, ["-f", "json", *arguments])
        assert result.exit_code == 0, (result.output, result.exception)
        return json.loads(result.stdout) if result.stdout.strip() else None

    return invoke


def test_runs_and_checkpoints_are_listed_and_described(world: World, run: Run) -> None:
    path = world.state_path
    model_id = world.training.model_id
    assert model_id in [each["training_run_id"] for each in run("run", "list")["runs"]]
    assert run("run", "info", model_id)["lora_rank"] == 4
    assert path in [each["tinker_path"] for each in run("checkpoint", "list")["checkpoints"]]
    assert run("checkpoint", "info", path)["is_lora"] is True


def test_a_checkpoint_is_published_limited_and_deleted(world: World, run: Run) -> None:
    path = world.fresh_state_path()
    run("checkpoint", "publish", path)
    assert run("checkpoint", "info", path)["public"] is True
    run("checkpoint", "unpublish", path)
    run("checkpoint", "set-ttl", path, "--remove")
    assert run("checkpoint", "info", path)["expires_at"] is None
    assert run("checkpoint", "delete", "-y", path)["deleted_count"] == 1


def test_training_and_external_checkpoints_are_downloaded(
    world: World, run: Run, tmp_path: Path
) -> None:
    for path in (world.state_path, world.external_path()):
        found = run("checkpoint", "download", path, "-o", str(tmp_path))
        names = {file.name for file in Path(found["destination"]).iterdir()}
        assert {"adapter_config.json", "adapter_model.safetensors"} <= names


def test_models_traces_and_usage_are_shown(world: World, run: Run, tmp_path: Path) -> None:
    world.training_logprobs(world.training)
    assert run("model", "list", "tiny")["models"][0]["model_name"] == MODEL
    target = tmp_path / "trace.pftrace"
    run("session", "export-trace", world.session_id, "-o", str(target))
    assert json.loads(target.read_bytes())["traceEvents"]
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    window = [(hour + timedelta(hours=n)).isoformat() for n in (-1, 1)]
    assert run("billing", "usage", *window)["data"]
    assert world.state_path
    assert run("billing", "checkpoint-storage")["data"][0]["checkpoint_count"] > 0
