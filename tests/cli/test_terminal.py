"""The real command on a real pseudo-terminal and in real pipes, against a small HTTP server."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from support.file_server import Behaviour, Reply, file_server
from support.terminal import TerminalSession

RUN = "run-1"
EXTERNAL = f"tinker://{RUN}/external_weights/final"
TOTAL = 3000


def checkpoint(number: int) -> dict[str, Any]:
    name = f"weights/{number:05}"
    return {
        "checkpoint_id": name,
        "checkpoint_type": "training",
        "time": "2025-06-01T00:00:00Z",
        "tinker_path": f"tinker://{RUN}/{name}",
        "size_bytes": 1000,
    }


def page(path: str) -> dict[str, Any]:
    query = {name: int(values[0]) for name, values in parse_qs(urlsplit(path).query).items()}
    offset, limit = query.get("offset", 0), query.get("limit", 100)
    items = [checkpoint(n) for n in range(offset, min(TOTAL, offset + limit))]
    return {
        "checkpoints": items,
        "cursor": {"offset": offset, "limit": limit, "total_count": TOTAL},
    }


@pytest.fixture
def behaviour() -> Behaviour:
    answers = {"POST /api/v1/client/config": {}, "GET /api/v1/checkpoints": page}
    return Behaviour({}, answers=answers)


@pytest.fixture
def environ(behaviour: Behaviour, tmp_path: Path) -> Iterator[dict[str, str]]:
    with file_server(behaviour) as address:
        expires = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        behaviour.answers[
            f"GET /api/v1/training_runs/{RUN}/checkpoints/external_weights/final"
            "/external_weights_urls"
        ] = {"urls": {"big": f"{address}/big", "small": f"{address}/small"}, "expires": expires}
        kept = {name: os.environ[name] for name in ("PATH", "TERM") if name in os.environ}
        yield {
            **kept,
            "HOME": str(tmp_path),
            "TINKER_BASE_URL": address,
            "TINKER_API_KEY": "tml-test",
            "TINKER_TELEMETRY": "0",
        }


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "tinkex", *words]


def test_a_closed_pipe_is_silent_and_clean(environ: dict[str, str]) -> None:
    line = " ".join(command("checkpoint", "list", "--limit", "0"))
    script = f"set -o pipefail; {line} | head -1"
    done = subprocess.run(["bash", "-c", script], env=environ, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout == f"{TOTAL} checkpoints\n"
    assert done.stderr == ""


def test_a_pipe_gets_every_row_and_no_bar(environ: dict[str, str]) -> None:
    line = command("checkpoint", "list", "--limit", "0")
    done = subprocess.run(line, env=environ, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == TOTAL + 2
    assert done.stderr == ""


def test_a_terminal_without_unicode_gets_a_table_in_letters(environ: dict[str, str]) -> None:
    ascii_only = {**environ, "PYTHONIOENCODING": "ascii", "NO_COLOR": "1"}
    with TerminalSession(command("model", "local"), ascii_only, columns=80) as session:
        assert session.finish() == 0, session.text
    assert "tinkex/tiny-llama" in session.text
    assert session.text.isascii()


@pytest.mark.parametrize("line", ["model local >&-", "--help >&-", "srve 2>&-"])
def test_a_closed_stream_is_no_traceback(environ: dict[str, str], line: str) -> None:
    script = f"{' '.join(command())} {line}"
    done = subprocess.run(["bash", "-c", script], env=environ, capture_output=True, text=True)
    assert done.returncode == (2 if "srve" in line else 0), done.stderr
    assert done.stdout + done.stderr == ""


def test_a_terminal_gets_a_bar_and_a_box(environ: dict[str, str]) -> None:
    with TerminalSession(command("checkpoint", "list", "--limit", "1100"), environ) as session:
        assert session.finish() == 0
    assert "Fetching 1100 checkpoints" in session.text
    assert "1100/1100" in session.text
    assert "┏━" in session.text
    assert "1900 more not shown" in session.text


def test_twenty_columns_are_enough(environ: dict[str, str]) -> None:
    line = command("checkpoint", "list", "--limit", "1")
    with TerminalSession(line, environ, columns=20) as session:
        assert session.finish() == 0
    assert f"Path: tinker://{RUN}/weights/00000" in session.text


def test_ctrl_c_during_a_download_leaves_nothing(
    environ: dict[str, str], behaviour: Behaviour, tmp_path: Path
) -> None:
    behaviour.files.update(big=bytes(64 << 20), small=b"1")
    behaviour.pause = 0.02
    output = tmp_path / "out"
    line = command("checkpoint", "download", EXTERNAL, "-o", str(output))
    with TerminalSession(line, environ) as session:
        session.wait_for("B/s")
        session.type("\x03")
        assert session.finish() == 130
    assert "Downloading" in session.text
    assert "Interrupted." in session.text
    assert "Traceback" not in session.text
    assert list(output.iterdir()) == []


def test_ctrl_c_during_sampling_ends_at_once(
    environ: dict[str, str], behaviour: Behaviour, tmp_path: Path
) -> None:
    release = threading.Event()
    model = {"model_name": "m"}
    behaviour.answers.update(
        {
            "POST /api/v1/create_session": {"session_id": "s"},
            "POST /api/v1/create_sampling_session": {"sampling_session_id": "p"},
            "GET /api/v1/get_server_capabilities": {"supported_models": [model]},
            "GET /api/v1/samplers/p": lambda _path: release.wait(60),
            "POST /api/v1/asample": lambda _path: release.wait(60),
        }
    )
    prompt = tmp_path / "prompt"
    prompt.write_text("[1, 2, 3]")
    line = command("run", "sample", "--base-model", "m", "--prompt-file", str(prompt))
    try:
        with TerminalSession(line, environ) as session:
            session.wait_for("Starting sampling...")
            session.type("\x03")
            assert session.finish() == 130
    finally:
        release.set()
    assert "Traceback" not in session.text


@pytest.mark.parametrize(
    ("keys", "status", "words"),
    [("n\r", 0, "Deletion cancelled."), ("\x03", 130, "Interrupted."), ("\x04", 1, "Aborted.")],
)
def test_the_question_before_deleting_can_be_declined(
    environ: dict[str, str], behaviour: Behaviour, keys: str, status: int, words: str
) -> None:
    behaviour.answers[f"GET /api/v1/training_runs/{RUN}/checkpoints"] = {
        "checkpoints": [checkpoint(1)]
    }
    line = command("checkpoint", "delete", f"tinker://{RUN}/weights/00001")
    with TerminalSession(line, environ) as session:
        session.wait_for("Are you sure you want to delete 1 checkpoint? [y/N]: ")
        session.type(keys)
        assert session.finish() == status
    assert words in session.text
    assert "Traceback" not in session.text


def test_a_pasted_key_is_shown_as_stars(environ: dict[str, str], behaviour: Behaviour) -> None:
    behaviour.answers["GET /api/v1/auth/apikey/me"] = {"key_id": 7, "name": "laptop"}
    with TerminalSession(command("auth", "login"), environ) as session:
        session.wait_for("Paste your API key: ")
        session.type("tml-sex\x7fcret\r")
        assert session.finish() == 0
    assert "*******" in session.text
    assert "tml-" not in session.text
    assert "Stored API key 'laptop' as the default credential." in session.text
    assert '"key": "tml-secret"' in (Path(environ["HOME"]) / ".tinker" / "servers.json").read_text()


def test_an_interrupt_before_the_first_request_is_quiet(environ: dict[str, str]) -> None:
    with TerminalSession(command("auth", "login"), environ) as session:
        session.wait_for("Paste your API key: ")
        session.type("\x03")
        assert session.finish() == 130
    assert "Traceback" not in session.text


def test_a_server_that_never_answers_is_given_up_and_named(environ: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        line = command("run", "list", "--base-url", address, "--timeout", "200")
        done = subprocess.run(line, env=environ, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: Request timeout\n")
    assert address in done.stderr


CREATE = ("checkpoint", "create", "--base-model", "m", "-o", "meta.json")
SAMPLE = ("run", "sample", "--base-model", "m", "--prompt-file", "prompt")


def work_server(behaviour: Behaviour, **answers: Any) -> None:
    """A server that lets sessions and samplers be made; `answers` are those of other routes."""
    behaviour.answers.update(
        {
            "POST /api/v1/create_session": {"session_id": "s"},
            "POST /api/v1/create_sampling_session": {"sampling_session_id": "p"},
            "GET /api/v1/samplers/p": {"sampler_id": "p", "base_model": "m"},
            **{f"POST /api/v1/{name}": answer for name, answer in answers.items()},
        }
    )


@pytest.mark.parametrize(
    ("line", "route"),
    [
        (CREATE, "create_model"),
        (CREATE, "create_session"),
        (SAMPLE, "create_sampling_session"),
        (SAMPLE, "asample"),
    ],
)
def test_an_unpaid_bill_is_said_at_once(
    environ: dict[str, str], behaviour: Behaviour, tmp_path: Path, line: tuple[str, ...], route: str
) -> None:
    work_server(behaviour, **{route: Reply(402, {"detail": "add a card"})})
    (tmp_path / "prompt").write_text("[1, 2, 3]")
    done = subprocess.run(
        command(*line), env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "Error: Billing issue\nDetails: add a card\nSet up billing" in done.stderr


@pytest.mark.parametrize("hung", [False, True])
@pytest.mark.parametrize(
    "line", [CREATE, ("checkpoint", "download", f"tinker://{RUN}/weights/final")]
)
def test_the_timeout_is_the_longest_wait_of_a_command(
    environ: dict[str, str],
    behaviour: Behaviour,
    tmp_path: Path,
    line: tuple[str, ...],
    hung: bool,
) -> None:
    """With a queue that is paused, and with a request that is never answered."""
    release = threading.Event()
    paused = Reply(408, {"type": "try_again", "request_id": "r", "queue_state": "paused_capacity"})
    made = (lambda _path: release.wait(60)) if hung else {"request_id": "r", "model_id": "m"}
    work_server(
        behaviour,
        create_model=made,
        load_weights=made,
        weights_info={"base_model": "m", "is_lora": True, "lora_rank": 8},
        retrieve_future=paused,
    )
    try:
        done = subprocess.run(
            command(*line, "--timeout", "1500"),
            env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=45,
        )  # fmt: skip
    finally:
        release.set()
    assert done.returncode == 1
    assert "Timed out" in done.stderr or "Request timeout" in done.stderr
    assert not [path for path in tmp_path.iterdir() if RUN in path.name]


def test_an_archive_behind_a_redirect_is_fetched_without_the_key(
    environ: dict[str, str], behaviour: Behaviour, tmp_path: Path
) -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        entry = tarfile.TarInfo("adapter_config.json")
        entry.size = 2
        tar.addfile(entry, io.BytesIO(b"{}"))
    storage = Behaviour({"signed.tar": content.getvalue()})
    path = f"tinker://{RUN}/sampler_weights/final"
    with file_server(storage) as elsewhere:
        behaviour.answers[
            f"GET /api/v1/training_runs/{RUN}/checkpoints/sampler_weights/final/archive"
        ] = Reply(302, None, f"{elsewhere}/signed.tar")
        line = command("checkpoint", "download", path, "-o", str(tmp_path / "out"))
        with TerminalSession(line, environ) as session:
            assert session.finish() == 0
    assert "Extracting archive" in session.text
    (folder,) = (tmp_path / "out").iterdir()
    assert (folder.name, (folder / "adapter_config.json").read_bytes()) == (
        f"{RUN}_sampler_weights_final",
        b"{}",
    )
    assert set(storage.keys) == {None}


def test_a_server_that_is_not_there_is_given_up_and_named(environ: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    line = command("run", "list", "--base-url", address)
    done = subprocess.run(line, env=environ, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: Connection failed\n")
    assert address in done.stderr
    assert "--local" in done.stderr


WATCHING = """
import sys, time
from tinkex.cli.terminal.keys import ended_by_q
with ended_by_q(sys.stdin, time.sleep) as wait:
    print("watching", wait is time.sleep, flush=True)
    try:
        wait(60.0)
    except KeyboardInterrupt:
        print("ended")
"""


def test_q_ends_what_is_watched_and_no_key_is_shown() -> None:
    with TerminalSession([sys.executable, "-c", WATCHING], os.environ) as session:
        session.wait_for("watching False")
        session.type("xyzq")
        assert session.finish() == 0
    assert "ended" in session.text
    assert "xyz" not in session.text


def test_where_nobody_presses_keys_the_wait_is_a_plain_one() -> None:
    line = [sys.executable, "-c", WATCHING.replace("60.0", "0.0")]
    done = subprocess.run(line, input="q", capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "watching True\n"
