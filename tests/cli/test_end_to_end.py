"""The command line against a real `tinkex serve`: a checkpoint's whole life, and the official
command line beside ours, line by line."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.json_shape import mismatches, shapes
from support.live_server import live_server
from support.sampling import tiny_folder
from tinkex.cli.main import run

pytestmark = pytest.mark.slow

MODEL = "tinkex/tiny-llama"
BIN = Path(sys.executable).parent
_SAVE = f"""
import tinkex
service = tinkex.ServiceClient()
run = service.create_lora_training_client("{MODEL}", rank=8, user_metadata={{"purpose": "parity"}})
print(run.save_state("final").result().path)
print(run.save_weights_for_sampler("sampler", ttl_seconds=86400).result().path)
print(run.save_weights_external("export").result().path)
service.close("success").result()
"""

_TRAIN = f"""
import tinkex
from tinkex import types
service = tinkex.ServiceClient()
run = service.create_lora_training_client("{MODEL}", rank=8)
datum = types.Datum(
    model_input=types.ModelInput.from_ints([1, 2, 3]),
    loss_fn_inputs={{"target_tokens": [2, 3, 4], "weights": [1.0, 1.0, 1.0]}},
)
for _ in range(2):
    run.forward_backward([datum], "cross_entropy").result()
    run.optim_step(types.AdamParams(learning_rate=1e-4)).result()
print(run.save_state("final").result().path)
service.close("success").result()
"""


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    home = tmp_path_factory.mktemp("home")
    with live_server(home / "server", "--model", MODEL, cache=home / "models") as server:
        yield {
            "TINKEX_CACHE": str(home / "models"),
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "TINKER_BASE_URL": server.url,
            "TINKER_API_KEY": "tml-test",
            "TINKER_TELEMETRY": "0",
        }


@pytest.fixture(scope="module")
def saved(environ: dict[str, str]) -> dict[str, str]:
    """The paths of a training, a sampler and an external checkpoint of one run."""
    line = [sys.executable, "-c", _SAVE]
    done = subprocess.run(line, env=environ, capture_output=True, text=True, check=True)
    paths = done.stdout.split()
    run = paths[0].removeprefix("tinker://").partition("/")[0]
    return dict(zip(("training", "sampler", "external"), paths, strict=True), run=run)


def tinkex(environ: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return _start("tinkex", environ, words)


def official(environ: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return _start("tinker", environ, words)


def _start(
    program: str, environ: dict[str, str], words: tuple[str, ...]
) -> subprocess.CompletedProcess[str]:
    line = [str(BIN / program), *words]
    return subprocess.run(line, env=environ, capture_output=True, text=True, timeout=120)


def ok(environ: dict[str, str], *words: str) -> Any:
    """Runs a line in this process, which saves starting one; the JSON it printed."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        result = run([*words, "--json"], stdout=out, stderr=err)
    assert result.exit_code == 0, err.getvalue()
    value = json.loads(out.getvalue())
    assert mismatches(value, shapes()[" ".join(words[:2])]) == []
    return value


def test_a_checkpoint_lives_its_whole_life(environ: dict[str, str], tmp_path: Path) -> None:
    made = ok(
        environ, "checkpoint", "create", "--base-model", MODEL, "--rank", "8",
        "-o", str(tmp_path / "meta.json"),
    )  # fmt: skip
    path, run_id = made["weights_path"], made["model_id"]
    assert json.loads((tmp_path / "meta.json").read_text()) == made
    listed = ok(environ, "checkpoint", "list", "--run-id", run_id)["checkpoints"]
    assert [item["tinker_path"] for item in listed] == [path]
    assert path in [c["tinker_path"] for c in ok(environ, "checkpoint", "list")["checkpoints"]]
    assert ok(environ, "run", "info", run_id)["last_sampler_checkpoint"]["tinker_path"] == path
    assert ok(environ, "checkpoint", "info", path)["lora_rank"] == 8

    ok(environ, "checkpoint", "publish", path)
    ok(environ, "checkpoint", "set-ttl", path, "--ttl", "86400")
    shared = ok(environ, "checkpoint", "info", path)
    assert shared["public"] is True
    assert shared["expires_at"] is not None
    ok(environ, "checkpoint", "unpublish", path)
    ok(environ, "checkpoint", "set-ttl", path, "--remove")
    private = ok(environ, "checkpoint", "info", path)
    assert (private["public"], private["expires_at"]) == (False, None)

    sample = ("run", "sample", "--model-path", path, "--prompt", "Hi", "--seed", "1")
    first = ok(environ, *sample, "--max-tokens", "4")
    assert first == ok(environ, *sample, "--max-tokens", "4")
    assert len(first["sequences"][0]["tokens"]) == 4
    streamed = tinkex(environ, *sample, "--max-tokens", "4", "--stream")
    assert streamed.returncode == 0, streamed.stderr

    kept = ok(environ, "checkpoint", "download", path, "-o", str(tmp_path))
    _load_with_peft(Path(kept["destination"]), Path(environ["TINKEX_CACHE"]))
    whole = str(tmp_path / "merged")
    assert ok(environ, "checkpoint", "export", path, "--layout", "merged", "-o", whole)
    assert Path(whole, "tokenizer.json").is_file()

    assert ok(environ, "checkpoint", "delete", path, "--yes")["deleted_count"] == 1
    gone = tinkex(environ, "checkpoint", "info", path)
    assert gone.returncode == 1
    assert f"Checkpoint not found: {path}" in gone.stderr


def test_the_base_of_a_run_that_is_served_from_a_folder_is_found(tmp_path: Path) -> None:
    """By our home's own server, in it or over its address, also once that has ended; and told to
    nobody else."""
    folder = tmp_path / "my-model"
    shutil.copytree(tiny_folder("tinkex/tiny-gpt-oss"), folder)
    home = tmp_path / "home"
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TINKEX_HOME": str(home)}
    environ |= {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    environ |= {"TINKER_API_KEY": "tml-test", "TINKEX_CACHE": str(tmp_path / "models")}
    with live_server(home, "--model", str(folder)) as server:
        asked = environ | {"TINKER_BASE_URL": server.url}
        code = _SAVE.replace(MODEL, "my-model")
        saved = subprocess.run(
            [sys.executable, "-c", code], env=asked, capture_output=True, text=True, check=True
        )
        path = saved.stdout.split()[1]
        line = ("checkpoint", "export", path, "--layout", "merged", "-o")
        assert ok(asked, *line, str(tmp_path / "over-address"))
        elsewhere = asked | {"TINKEX_HOME": str(tmp_path / "other")}
        unknown = tinkex(elsewhere, *line, str(tmp_path / "unknown"))
        assert "--base FOLDER" in unknown.stderr
        assert str(folder) not in unknown.stderr + unknown.stdout
    assert ok(environ, "checkpoint", "export", "--local", *line[2:], str(tmp_path / "embedded"))
    for name in ("over-address", "embedded"):
        assert (tmp_path / name / "tokenizer.json").is_file()


def _load_with_peft(folder: Path, models: Path) -> None:
    """A real model of the same shape takes the adapter."""
    import torch
    from peft import PeftModel
    from transformers import AutoConfig, AutoModelForCausalLM

    base = json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
    assert base == MODEL
    (source,) = models.glob("tinkex--tiny-llama*")
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source))
    adapted = PeftModel.from_pretrained(model, folder)
    assert adapted(torch.tensor([[1, 2, 3]])).logits.shape[:2] == (1, 3)


SHARED_LINES = {
    "checkpoint list": ("checkpoint", "list"),
    "checkpoint list of a run": ("checkpoint", "list", "--run-id", "{run}"),
    "checkpoint list with a limit": ("checkpoint", "list", "--limit", "1"),
    "checkpoint info": ("checkpoint", "info", "{training}"),
    "checkpoint info of none": ("checkpoint", "info", "tinker://{run}/weights/none"),
    "checkpoint info of nonsense": ("checkpoint", "info", "nonsense"),
    "run list": ("run", "list"),
    "run info": ("run", "info", "{run}"),
    "run info of none": ("run", "info", "none"),
    "model list": ("model", "list"),
    "model list of some": ("model", "list", "TINY"),
    "model list of none": ("model", "list", "nothing"),
    "storage": ("billing", "checkpoint-storage"),
    "storage as csv": ("billing", "checkpoint-storage", "--csv", "-"),
    "status": ("auth", "status"),
    "whoami": ("auth", "whoami"),
    "set-ttl without a time": ("checkpoint", "set-ttl", "{training}"),
    "delete of nothing": ("checkpoint", "delete"),
    "unknown command": ("checkpoint", "bogus"),
    "unknown option": ("run", "list", "--bogus"),
    "missing argument": ("run", "info"),
    "bare": (),
}
WRONG_USAGE = ("checkpoint info of nonsense", "set-ttl without a time", "delete of nothing")
NOT_JSON = ("status",)  # the official command ignores --format here


Answers = dict[str, tuple[int, str]]


@pytest.fixture(scope="module")
def answers(environ: dict[str, str], saved: dict[str, str]) -> tuple[Answers, Answers]:
    """What both programs exit with and print for every line; each is started once for all."""
    lines = {
        name: ([] if name in NOT_JSON else ["-f", "json"])
        + [word.format(**saved) for word in words]
        for name, words in SHARED_LINES.items()
    }

    def ask(program: str) -> Answers:
        done = subprocess.run(
            [sys.executable, "-c", _ANSWER, program],
            input=json.dumps(lines), env=environ, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return {name: tuple(found) for name, found in json.loads(done.stdout).items()}

    with ThreadPoolExecutor(2) as both:
        ours, theirs = both.map(ask, ("tinkex", "tinker"))
    return ours, theirs


_ANSWER = """
import contextlib, io, json, sys
program, lines = sys.argv[1], json.load(sys.stdin)

def exit_code(line):
    if program == "tinkex":
        from tinkex.cli.main import run
        return run(line).exit_code
    from tinker.cli.__main__ import main
    sys.argv = [program, *line]
    try:
        return main() or 0
    except SystemExit as end:
        return end.code or 0

found = {}
for name, line in lines.items():
    out, err = io.StringIO(newline=""), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = exit_code(line)
    found[name] = [code, out.getvalue()]
print(json.dumps(found))
"""


@pytest.mark.parametrize("name", SHARED_LINES)
def test_both_command_lines_print_the_same_json_and_exit_alike(
    answers: tuple[Answers, Answers], name: str
) -> None:
    """Ours may say more, never less or otherwise; wrong usage exits with 2, not at times with 1."""
    (our_code, ours), (their_code, theirs) = (found[name] for found in answers)
    assert our_code == (2 if name in WRONG_USAGE else their_code)
    try:
        told = json.loads(theirs)
    except ValueError:
        assert set(theirs.splitlines()) <= set(ours.splitlines())
    else:
        assert _common(json.loads(ours), told) == told


def _common(ours: Any, theirs: Any) -> Any:
    """What ours says in the words that theirs has, in their order."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return {name: _common(ours.get(name), value) for name, value in theirs.items()}
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [_common(*pair) for pair in zip(ours, theirs, strict=True)]
    return ours


@pytest.mark.parametrize("kind", ["training", "external"])
def test_both_command_lines_download_the_same_files(
    environ: dict[str, str], saved: dict[str, str], kind: str, tmp_path: Path
) -> None:
    folders = []
    for start in (tinkex, official):
        folder = tmp_path / start.__name__
        folder.mkdir()
        done = start(
            environ, "-f", "json", "checkpoint", "download", saved[kind], "-o", str(folder)
        )
        assert done.returncode == 0, done.stderr
        value = json.loads(done.stdout)
        value["destination"] = Path(value["destination"]).name.replace(":", "_")
        folders.append((value, {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()}))
    assert folders[0] == folders[1]


def test_a_download_leaves_no_run_behind_and_tells_the_true_step(
    environ: dict[str, str], tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _TRAIN], env=environ, capture_output=True, text=True, check=True
    )
    path = done.stdout.strip()
    before = len(ok(environ, "run", "list", "--limit", "0")["runs"])
    kept = ok(environ, "checkpoint", "download", path, "-o", str(tmp_path))
    assert len(ok(environ, "run", "list", "--limit", "0")["runs"]) == before
    folder = Path(kept["destination"])
    assert ":" not in folder.name
    assert json.loads((folder / "run.json").read_text())["step"] == 2
    assert not (folder / "training.safetensors").exists()
    assert ok(environ, "checkpoint", "info", path)["step"] == 2
    run = ok(environ, "run", "info", path.removeprefix("tinker://").partition("/")[0])
    assert (run["step"], run["state"]) == (2, "live") or run["state"] == "ended"
    assert run["last_loss"] > 0
    assert run["tokens"] == 6


def test_what_others_have_published_can_be_looked_at(
    environ: dict[str, str], saved: dict[str, str]
) -> None:
    other = {**environ, "TINKER_API_KEY": "tml-other"}
    line = ("checkpoint", "info", saved["sampler"])
    assert tinkex(other, *line).returncode == 1
    ok(environ, "checkpoint", "publish", saved["sampler"])
    try:
        assert ok(other, *line)["public"] is True
        listed = ok(other, "checkpoint", "list", "--run-id", saved["run"])["checkpoints"]
        assert [item["tinker_path"] for item in listed] == [saved["sampler"]]
    finally:
        ok(environ, "checkpoint", "unpublish", saved["sampler"])


def test_a_run_is_renamed_noted_stopped_and_deleted(environ: dict[str, str]) -> None:
    line = [sys.executable, "-c", _TRAIN]
    made = subprocess.run(line, env=environ, capture_output=True, text=True, check=True)
    run_id = made.stdout.strip().removeprefix("tinker://").partition("/")[0]
    short = f"{run_id[:8]}:0"
    ok(environ, "run", "rename", short, "the good one")
    ok(environ, "run", "note", "the good one", "lr 1e-4")
    shown = ok(environ, "run", "info", run_id[:12])
    assert (shown["training_run_id"], shown["name"]) == (run_id, "the good one")
    assert shown["note"] == "lr 1e-4"
    ok(environ, "run", "stop", short, "--yes")
    for _ in range(100):
        if ok(environ, "run", "info", short)["state"] == "ended":
            break
        time.sleep(0.2)
    assert ok(environ, "run", "delete", short, "--yes")["deleted_checkpoints"] == 1
    assert tinkex(environ, "run", "info", short).returncode == 1


def test_both_command_lines_delete_alike(environ: dict[str, str]) -> None:
    results = []
    for start in (tinkex, official):
        line = [sys.executable, "-c", _SAVE]
        made = subprocess.run(line, env=environ, capture_output=True, text=True, check=True)
        done = start(environ, "-f", "json", "checkpoint", "delete", *made.stdout.split(), "-y")
        assert done.returncode == 0, done.stdout + done.stderr
        results.append((done.returncode, json.loads(done.stdout)))
    assert results[0] == results[1] == (0, {"deleted_count": 3, "failed": []})


def test_a_trace_arrives_as_a_file(
    environ: dict[str, str], saved: dict[str, str], tmp_path: Path
) -> None:
    session = saved["run"].partition(":")[0]
    target = tmp_path / "new" / "trace"
    kept = ok(environ, "session", "export-trace", session, "-o", str(target))
    assert target.stat().st_size == kept["file_size_bytes"] > 0


def test_usage_is_told_by_the_hour(environ: dict[str, str], saved: dict[str, str]) -> None:
    now = ok(environ, "run", "info", saved["run"])
    day = now["last_request_time"][:10]
    window = (f"{day}T00:00:00Z", f"{day}T23:00:00Z")
    ours = ok(environ, "billing", "usage", *window)
    theirs = json.loads(official(environ, "-f", "json", "billing", "usage", *window).stdout)
    for value in (ours, theirs):  # storage grows while we look
        value["data"] = [e for e in value["data"] if e["event_info"]["type"] != "storage"]
    assert ours == theirs
