"""Runs the official command line in this process against a server. A script, because the client
below it leaves sockets open and would disturb other tests.

    python official_commands.py BASE_URL MODEL REPORT
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import tinker
from click.testing import CliRunner
from tinker.cli import __main__ as official

from compat.world import World

KEY = "tml-official-cli"


def run(*arguments: str) -> Any:
    """What a command prints as JSON."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = CliRunner().invoke(official.main_cli, ["-f", "json", *arguments])
    assert result.exit_code == 0, (arguments, result.output, result.exception)
    return json.loads(result.stdout) if result.stdout.strip() else None


def lists_and_describes(world: World) -> None:
    path = world.state_path
    model_id = world.training.model_id
    assert model_id in [each["training_run_id"] for each in run("run", "list")["runs"]]
    assert run("run", "info", model_id)["lora_rank"] == 4
    assert path in [each["tinker_path"] for each in run("checkpoint", "list")["checkpoints"]]
    assert run("checkpoint", "info", path)["is_lora"] is True


def publishes_limits_and_deletes(world: World) -> None:
    path = world.fresh_state_path()
    run("checkpoint", "publish", path)
    assert run("checkpoint", "info", path)["public"] is True
    run("checkpoint", "unpublish", path)
    run("checkpoint", "set-ttl", path, "--remove")
    assert run("checkpoint", "info", path)["expires_at"] is None
    assert run("checkpoint", "delete", "-y", path)["deleted_count"] == 1


def downloads_training_and_external_checkpoints(world: World) -> None:
    with tempfile.TemporaryDirectory() as target:
        for path in (world.state_path, world.external_path()):
            found = run("checkpoint", "download", path, "-o", target)
            names = {file.name for file in Path(found["destination"]).iterdir()}
            assert {"adapter_config.json", "adapter_model.safetensors"} <= names


def shows_models_and_exports_traces(world: World) -> None:
    world.training_logprobs(world.training)
    assert run("model", "list", "tiny")["models"][0]["model_name"] == world.base_model
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "trace.pftrace"
        run("session", "export-trace", world.session_id, "-o", str(target))
        assert json.loads(target.read_bytes())["traceEvents"]


def shows_usage_and_storage(world: World) -> None:
    world.training_logprobs(world.training)
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    window = [(hour + timedelta(hours=number)).isoformat() for number in (-1, 1)]
    assert run("billing", "usage", *window)["data"]
    assert world.state_path
    assert run("billing", "checkpoint-storage")["data"][0]["checkpoint_count"] > 0


PROMISES: tuple[Callable[[World], None], ...] = (
    lists_and_describes,
    publishes_limits_and_deletes,
    downloads_training_and_external_checkpoints,
    shows_models_and_exports_traces,
    shows_usage_and_storage,
)


def main(base_url: str, model: str, report: str) -> None:
    os.environ.update(TINKER_BASE_URL=base_url, TINKER_API_KEY=KEY)
    world = World(tinker, base_url, model, KEY)
    found = {promise.__name__: attempt(world, promise) for promise in PROMISES}
    world.close()
    Path(report).write_text(json.dumps(found), encoding="utf-8")


def attempt(world: World, promise: Callable[[World], None]) -> str | None:
    try:
        promise(world)
    except Exception:
        return traceback.format_exc(limit=-6)
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])
