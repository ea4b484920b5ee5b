"""`checkpoint create`: what it asks of the SDK, prints and writes."""

from __future__ import annotations

import json
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from support.command_line import (
    CommandLine,
    FakeClients,
    FakeRest,
    Ran,
    failed,
    status_error,
    training_run,
)
from support.fake_service import Service
from support.json_shape import mismatches, shapes


def create(*flags: str, service: Service | None = None) -> Ran:
    rest = FakeRest(runs=[training_run(1, name="varn")])
    clients = FakeClients(rest=rest, service=service or Service())
    return CommandLine(clients)("checkpoint", "create", *flags)


def test_create_saves_waits_and_describes_the_checkpoint(tmp_path: Path) -> None:
    service = Service()
    target = tmp_path / "deep" / "meta.json"
    ran = create("--base-model", "Org/Model:8B", "-o", str(target), service=service)
    assert ran.code == 0, ran.err
    name = "checkpoint-org-model-8b"
    path = f"tinker://run-1/sampler_weights/{name}"
    line = f'tinkex run sample --model-path {path} --prompt "Hello"'
    assert ran.out == f"Checkpoint saved to {target}\nWeights: {path}\nNext: {line}\n"
    assert service.made[0] == (
        "lora",
        {
            "base_model": "Org/Model:8B", "rank": 32, "seed": None,
            "train_mlp": True, "train_attn": True, "train_unembed": True,
        },
    )  # fmt: skip
    assert json.loads(target.read_text()) == {
        "base_model": "Org/Model:8B",
        "model_id": "run-1",
        "weights_path": path,
        "saved_at": "2026-01-31T12:00:00Z",
        "response": {"path": path, "type": None},
    }
    assert len(ran.err.splitlines()) == 3


def test_create_passes_its_options_on(tmp_path: Path) -> None:
    service = Service()
    flags = ["--base-model", "m", "--rank", "8", "--seed", "3", "--no-train-mlp", "--name", "mine"]
    ran = create(*flags, "--output", str(tmp_path / "f"), "--json", service=service)
    assert ran.code == 0, ran.err
    described = json.loads(ran.out)
    assert described["weights_path"].endswith("/mine")
    assert mismatches(described, shapes()["checkpoint create"]) == []
    made = service.made[0][1]
    assert (made["rank"], made["seed"], made["train_mlp"]) == (8, 3, False)


def test_create_can_start_from_saved_weights(tmp_path: Path) -> None:
    service, path = Service(), "tinker://varn/weights/x"
    ran = create("--model-path", path, "-o", str(tmp_path / "f"), service=service)
    assert ran.code == 0, ran.err
    assert service.made[0] == ("state", "tinker://run-1/weights/x")
    assert json.loads((tmp_path / "f").read_text())["base_model"] == "org/from-state"


NO_TRAINING = ["--no-train-mlp", "--no-train-attn", "--no-train-unembed"]


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--base-model", "m"], 2, "--output is required for checkpoint command"),
        (["-o", "f"], 2, "Missing --base-model (or --model-path)"),
        (["--base-model", "m", "-o", "f", *NO_TRAINING], 2, "At least one of --train-mlp"),
        (["--model-path", "x", "-o", "f"], 2, "must be a tinker:// path"),
        (["--base-model", "m", "-o", "f", "--rank", "0"], 2, "--rank"),
    ],
)
def test_what_cannot_be_created_is_explained(flags: list[str], code: int, words: str) -> None:
    ran = create(*flags)
    assert (ran.code, ran.out) == (code, "")
    assert words in ran.err


def test_failed_saves_are_explained(tmp_path: Path) -> None:
    flags = ("--base-model", "m", "-o", str(tmp_path / "f"))
    ran = create(*flags, service=Service(saved=failed(status_error(500))))
    assert "Checkpoint failed due to server or transient error: " in ran.err
    ran = create(*flags, service=Service(saved=failed(status_error(400))))
    assert "Checkpoint failed. Please check your inputs: " in ran.err
    ran = create(*flags, "--timeout", "20", service=Service(saved=Future()))
    assert "Timed out while awaiting checkpoint save" in ran.err
    assert list(tmp_path.glob("*")) == []


def test_a_description_that_cannot_be_written_still_names_the_weights(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = create("--base-model", "m", "-o", str(tmp_path / "file" / "meta"))
    assert ran.code == 1
    assert "Failed to write checkpoint metadata" in ran.err
    assert "tinker://run-1/sampler_weights/checkpoint-m" in ran.err


@pytest.mark.parametrize("way", ["--base-model", "--model-path"])
def test_the_timeout_bounds_the_creation_of_a_model(way: str, tmp_path: Path) -> None:
    forever = threading.Event()
    service = Service()
    stuck: Any = lambda *_args, **_options: forever.wait()  # noqa: E731 - typed as anything
    service.create_lora_training_client = stuck
    service.create_training_client_from_state = stuck
    flags = [way, "tinker://varn/weights/x", "-o", str(tmp_path / "f"), "--timeout", "50"]
    ran = create(*flags, service=service)
    forever.set()
    assert ran.code == 1
    assert "Timed out while awaiting checkpoint save" in ran.err
