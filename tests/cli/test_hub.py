"""`checkpoint push-hf`, against a Hub that remembers what was done to it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.command_line import CommandLine, FakeClients, FakeRest, Ran, done, training_run
from support.json_shape import mismatches, shapes
from tinkex.cli.errors import CliError

PATH = "tinker://run:1/external_weights/final"
ADAPTER = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights"}


class FakeHub:
    def __init__(self, there: str | None = None, problem: CliError | None = None) -> None:
        self.there, self.problem = there, problem
        self.uploads: list[dict[str, Any]] = []
        self.created: list[tuple[str, bool]] = []

    def require_login(self) -> None:
        if self.problem:
            raise self.problem

    def create(self, repo: str, private: bool) -> str:
        self.created.append((repo, private))
        return f"ada/{repo}"

    def tinker_path(self, repo: str, revision: str | None) -> str | None:
        return self.there

    def upload(self, repo: str, folder: Path, **options: Any) -> None:
        files = {path.name: path.read_text() for path in folder.iterdir()}
        self.uploads.append({"repo": repo, "files": files, **options})


class HubRest(FakeRest):
    def __init__(self, files: dict[str, bytes], folder: Path) -> None:
        super().__init__()
        self.folder = folder
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_bytes(content)

    def get_external_weights_urls(self, path: str) -> Any:
        urls = {file.name: file.as_uri() for file in self.folder.iterdir()}
        return done(SimpleNamespace(urls=urls, expires=datetime.now(UTC) + timedelta(hours=1)))

    def get_training_run_by_tinker_path(self, path: str, access_scope: str) -> Any:
        return done(training_run(1))


def push(tmp_path: Path, hub: FakeHub, *flags: str, files: dict[str, bytes] = ADAPTER) -> Ran:
    clients = FakeClients(HubRest(files, tmp_path / "server"), address="local")
    line = CommandLine(clients, extra={"hub": lambda: hub})
    return line("checkpoint", "push-hf", PATH, *flags)


def test_an_adapter_gets_a_repository_a_branch_and_a_card(tmp_path: Path) -> None:
    hub = FakeHub()
    ran = push(tmp_path, hub, "--json")
    assert ran.code == 0, ran.err
    value = json.loads(ran.out)
    assert mismatches(value, shapes()["checkpoint push-hf"]) == []
    assert value == {
        "checkpoint_path": PATH,
        "repo_id": "ada/tinker-model-8b-run-1",
        "revision": "external_weights-final",
        "public": False,
    }
    assert hub.created == [("tinker-model-8b-run-1", True)]
    (upload,) = hub.uploads
    assert json.loads(upload["files"]["adapter_config.json"]) == {
        "base_model_name_or_path": "org/model-8b"
    }
    assert f"tinker_path: {PATH}\n" in upload["files"]["README.md"]
    assert "base_model: org/model-8b\n" in upload["files"]["README.md"]
    assert upload["ignore_patterns"] == ["checkpoint_complete"]


def test_options_reach_the_hub(tmp_path: Path) -> None:
    hub = FakeHub()
    flags = ["--repo", "mine", "--public", "--commit-message", "m", "--create-pr"]
    flags += ["--allow-pattern", "*.json", "--ignore-pattern", "x", "--no-model-card"]
    ran = push(tmp_path, hub, *flags)
    assert ran.code == 0, ran.err
    assert hub.created == [("mine", False)]
    (upload,) = hub.uploads
    assert "README.md" not in upload["files"]
    del upload["files"]
    assert upload == {
        "repo": "ada/mine",
        "revision": None,
        "commit_message": "m",
        "create_pr": True,
        "allow_patterns": ["*.json"],
        "ignore_patterns": ["x"],
    }
    assert "Revision" not in ran.out


def test_a_card_that_is_there_is_kept(tmp_path: Path) -> None:
    hub = FakeHub()
    assert push(tmp_path, hub, files={**ADAPTER, "README.md": b"mine"}).code == 0
    assert hub.uploads[0]["files"]["README.md"] == "mine"


def test_the_same_checkpoint_may_be_pushed_again(tmp_path: Path) -> None:
    assert push(tmp_path, FakeHub(there=PATH)).code == 0


@pytest.mark.parametrize(
    ("hub", "files", "words"),
    [
        (FakeHub("tinker://other/weights/x"), ADAPTER, "appears to contain a different Tinker"),
        (FakeHub(), {"model.bin": b""}, "Checkpoint does not contain a PEFT adapter."),
        (FakeHub(problem=CliError("Not logged in")), ADAPTER, "Not logged in"),
    ],
)
def test_nothing_is_uploaded_that_should_not_be(
    tmp_path: Path, hub: FakeHub, files: dict[str, bytes], words: str
) -> None:
    ran = push(tmp_path, hub, files=files)
    assert ran.code == 1
    assert words in ran.err
    assert hub.uploads == []
