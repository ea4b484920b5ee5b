"""A home has one server, and every process of its user can use it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tinkex
from support.live_server import live_server
from tinkex.server.tenancy.keys import KeyFile

pytestmark = pytest.mark.slow

MODEL = "tinkex/tiny-llama"

_HOLD = """
import sys, tinkex
with tinkex.ServiceClient(base_url="local") as service:
    training = service.create_lora_training_client(sys.argv[1], rank=4)
    print(training.get_info().model_id, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TINKEX_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TINKEX_MODELS", MODEL)
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    return tmp_path / "home"


@contextmanager
def script() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another script with a server of its own, and the id of the run it has made."""
    line = [sys.executable, "-c", _HOLD, MODEL]
    pipe = subprocess.PIPE
    with subprocess.Popen(line, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
        if process.poll() is None:
            process.communicate(timeout=60)


def step(training: tinkex.TrainingClient) -> float:
    datum = tinkex.Datum(
        model_input=tinkex.ModelInput.from_ints([1, 2, 3]),
        loss_fn_inputs={"target_tokens": [2, 3, 4], "weights": [1.0, 1.0, 1.0]},
    )
    loss = training.forward_backward([datum], "cross_entropy").result().metrics["loss:sum"]
    training.optim_step(tinkex.AdamParams(learning_rate=1e-2)).result()
    return float(loss)


def command(*words: str) -> Any:
    line = [sys.executable, "-m", "tinkex", *words, "--local", "--json"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.usefixtures("home")
def test_a_second_script_and_commands_join_the_first_and_downloads_work(tmp_path: Path) -> None:
    with script() as (_, theirs), tinkex.ServiceClient(base_url="local") as service:
        training = service.create_lora_training_client(MODEL, rank=4)
        assert step(training) > 0
        path = training.save_state("one").result().path
        listed = [run["training_run_id"] for run in command("run", "list")["runs"]]
        assert set(listed) == {theirs, training.get_info().model_id}
        kept = command("checkpoint", "download", path, "-o", str(tmp_path))
        assert (Path(kept["destination"]) / "adapter_model.safetensors").is_file()


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("how", [signal.SIGKILL, None])
def test_who_joined_takes_over_when_the_first_ends_and_its_run_goes_on(
    how: signal.Signals | None,
) -> None:
    with script() as (first, _), tinkex.ServiceClient(base_url="local") as service:
        training = service.create_lora_training_client(MODEL, rank=4)
        before = step(training)
        if how is None:
            first.communicate(timeout=60)
        else:
            first.send_signal(how)
            first.wait(60)
        assert step(training) < before
        assert training.save_state("after").result().path


def test_the_sdk_joins_a_server_and_needs_none_of_its_keys(home: Path) -> None:
    KeyFile(home).create("alice")
    with (
        live_server(home, "--model", MODEL) as server,
        tinkex.ServiceClient(base_url="local") as service,
    ):
        training = service.create_lora_training_client(MODEL, rank=4)
        assert step(training) > 0
        ids = [run["training_run_id"] for run in command("run", "list")["runs"]]
        assert ids == [training.get_info().model_id]
        assert str(server.process.pid) in (home / "lock").read_text()


@pytest.mark.usefixtures("home")
def test_serve_says_who_has_the_home_and_what_to_do() -> None:
    with script() as (first, _):
        line = [sys.executable, "-m", "tinkex", "serve", "--port", "0"]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1
        for part in (f"process {first.pid}", "--local join it", "--home"):
            assert part in done.stderr


_FORK = """
import os, tinkex
with tinkex.ServiceClient(base_url="local") as service:
    service.get_server_capabilities()
    child = os.fork()
    if not child:
        with tinkex.ServiceClient(base_url="local") as theirs:
            found = theirs.get_server_capabilities().supported_models
        print(*(model.model_name for model in found), flush=True)
        os._exit(0)
    _, ended = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(ended) == 0
"""


@pytest.mark.usefixtures("home")
def test_a_forked_child_joins_its_parent() -> None:
    line = [sys.executable, "-c", _FORK]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, f"{MODEL}\n"), done.stderr
