"""Promises of `tinkex serve`: what it prints, how it refuses, how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import shutil
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

import tinkex
from support.live_server import LiveServer, live_server, start
from support.logging_state import restored_logging
from tinkex.server.app import create_app
from tinkex.server.core import Core
from tinkex.server.hosting.serve import ServeOptions, listening, serve
from tinkex.server.settings import Scaling, Settings
from tinkex.server.storage.database.sqlite import connect
from tinkex.server.storage.home import Home
from tinkex.server.tenancy.keys import KeyFile

TINY = "tinkex/tiny-llama"


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    with restored_logging():
        yield


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {
        "TINKEX_HOME": str(tmp_path / "home"),
        "TINKEX_CACHE": str(tmp_path / "cache"),
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_OFFLINE": "1",
    }


def refusal(
    options: ServeOptions, environ: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> str:
    """The one line on stderr with which a server does not start."""
    assert serve(options, environ) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("tinkex serve: ")
    return line


@pytest.mark.parametrize("name", ["tinkex.db", "keys.json", "tenants.json"])
def test_a_damaged_file_of_the_home_is_one_clear_line(
    environ: dict[str, str], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    home = Path(environ["TINKEX_HOME"])
    home.mkdir()
    (home / name).write_bytes(b"[" * 100_000)
    assert name in refusal(ServeOptions(models=(TINY,), port=0), environ, capsys)


def test_a_database_of_a_newer_release_is_one_clear_line(
    environ: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    home = Path(environ["TINKEX_HOME"])
    home.mkdir()
    with contextlib.closing(connect(home / "tinkex.db")) as rows:
        rows.set_version(9999)
    assert "version 9999" in refusal(ServeOptions(models=(TINY,), port=0), environ, capsys)


def test_a_taken_port_is_one_clear_line(
    environ: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refusal(ServeOptions(port=port), environ, capsys)
    assert f"port {port}" in line
    assert "--port" in line


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
async def test_answers_do_not_wait_for_acknowledgements(host: str) -> None:
    """Nagle's algorithm beside a client's delayed acknowledgements is 40 ms on every request."""
    loop = asyncio.get_running_loop()
    accepted: asyncio.Future[int] = loop.create_future()

    class Connection(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            ours: socket.socket = transport.get_extra_info("socket")
            accepted.set_result(ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            transport.close()

    with listening(host, 0) as listener:
        async with await loop.create_server(Connection, sock=listener):
            _, writer = await asyncio.open_connection(host, listener.getsockname()[1])
            assert await asyncio.wait_for(accepted, 60) != 0
            writer.close()
            await writer.wait_closed()


def test_a_missing_model_and_a_bad_folder_are_one_clear_line(
    environ: dict[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    line = refusal(ServeOptions(models=("acme/none",), port=0), environ, capsys)
    assert "acme/none was not found" in line
    line = refusal(ServeOptions(models=(str(tmp_path),), port=0), environ, capsys)
    assert "config.json is missing" in line
    line = refusal(ServeOptions(aliases=("x",), port=0), environ, capsys)
    assert "NAME=TARGET" in line


def test_a_locked_home_says_who_holds_it(
    environ: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    held = Home(Path(environ["TINKEX_HOME"]), "http://127.0.0.1:1")
    try:
        line = refusal(ServeOptions(port=0), environ, capsys)
    finally:
        held.release()
    assert "in use by process" in line
    assert "http://127.0.0.1:1" in line


def test_a_home_that_cannot_be_is_one_clear_line(
    environ: dict[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    line = refusal(ServeOptions(home=tmp_path / "file", port=0), environ, capsys)
    assert "cannot be used" in line


async def test_what_another_user_owns_is_told_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home that was restored as root: the line is what `tinkex serve` ends with."""

    async def refused(_: Core) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/srv/home/weights")

    monkeypatch.setattr(Core, "start", refused)
    app = create_app(Settings(home=tmp_path, models=()))
    with pytest.raises(PermissionError):
        async with app.router.lifespan_context(app):
            pass
    assert "/srv/home/weights may not be used by this user" in app.state.problem
    assert "chown -R" in app.state.problem


def test_a_cache_that_cannot_be_is_one_clear_line(
    environ: dict[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    environ["TINKEX_CACHE"] = str(tmp_path / "file" / "cache")
    line = refusal(ServeOptions(models=(TINY,), port=0), environ, capsys)
    assert "name another folder with TINKEX_CACHE" in line


def test_an_embedded_home_that_cannot_be_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TINKEX_HOME", str(tmp_path / "file"))
    with (
        tinkex.ServiceClient(base_url="local") as service,
        pytest.raises(tinkex.TinkerError, match=r"file cannot be used.*TINKEX_HOME"),
    ):
        service.get_server_capabilities()


def test_an_embedded_home_without_room_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    from tinkex.server.hosting import embedded

    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(embedded, "open_app", full)
    with (
        tinkex.ServiceClient(base_url="local") as service,
        pytest.raises(tinkex.TinkerError, match=r"start: No space left on device; its home is"),
    ):
        service.get_server_capabilities()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (ServeOptions(ray_resources={"CPU": 1.0}), "without --ray"),
        (ServeOptions(ray_shared=(Path("/mnt"),)), "without --ray"),
        (ServeOptions(scaling=Scaling(shrink_s=3), engines=2), "without a span of engines"),
        (ServeOptions(database="nonsense"), "must be postgresql://USER@HOST/DATABASE"),
        (ServeOptions(database="my:secret@host"), "must be postgresql://USER@HOST/DATABASE"),
        (ServeOptions(database=""), "--database is empty"),
        (ServeOptions(database="postgresql://a:secret@h:door/x"), "port 'door' is no number"),
        (ServeOptions(database="postgresql://a:secret@h:99999/x"), "port '99999' is no number"),
        (ServeOptions(database="postgresql://a:secret@[h/x"), "--database cannot be read"),
        (ServeOptions(database="postgresql://a:top secret@h/x"), "written as %40"),
        (ServeOptions(database="postgresql://a:top@secret@h/x"), "written as %40"),
        (ServeOptions(database="postgresql://a:secret/word@h/x"), "written as %40"),
        (ServeOptions(objects=""), "--objects is empty"),
        (ServeOptions(objects="nonsense"), "nonsense is no object store"),
        (ServeOptions(objects="file://folder"), "file:///FOLDER"),
        (ServeOptions(objects="az://container"), "come from the environment"),
        (ServeOptions(host="no such place"), "'no such place' is not an address of this machine"),
        (
            ServeOptions(ray="10.0.0.1:6379", ray_shared=(Path("/no/such"),)),
            "--ray-shared /no/such",
        ),
    ],
)
def test_an_option_that_would_mean_nothing_is_one_clear_line(
    environ: dict[str, str], capsys: pytest.CaptureFixture[str], options: ServeOptions, words: str
) -> None:
    line = refusal(replace(options, models=(TINY,), port=0), environ, capsys)
    assert words in line
    assert "secret" not in line


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_an_open_address_needs_keys(
    environ: dict[str, str], capsys: pytest.CaptureFixture[str], host: str
) -> None:
    line = refusal(ServeOptions(host=host, port=0), environ, capsys)
    assert "tinkex keys create" in line


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    home = tmp_path_factory.mktemp("serve") / "home"
    with live_server(home, "--model", TINY, "--alias", f"big/model={TINY}") as server:
        yield server


def ask(url: str, key: str | None = None) -> tuple[int, dict[str, object]]:
    request = urllib.request.Request(url, headers={"x-api-key": key} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.mark.slow
def test_it_prints_its_address_models_and_a_snippet_and_is_ready(server: LiveServer) -> None:
    for part in (server.url, TINY, "big/model", "tinker.ServiceClient(", "ready after"):
        assert part in server.output
    status, health = ask(f"{server.url}/api/v1/healthz")
    assert (status, health["status"]) == (200, "ok")
    assert [engine["state"] for engine in health["engines"]] == ["ready"]
    status, found = ask(f"{server.url}/api/v1/get_server_capabilities", "tml-x")
    assert status == 200
    models = found["supported_models"]
    assert isinstance(models, list)
    assert [model["model_name"] for model in models] == [TINY, "big/model"]


@pytest.mark.slow
def test_the_snippet_can_be_pasted_as_it_is_and_nothing_is_wider_than_80_columns(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    greeting = server.output.partition("\n\n")[2].partition("\n\n")[0]
    monkeypatch.setitem(sys.modules, "tinker", tinkex)
    pasted: dict[str, Any] = {}
    exec(compile(greeting, "pasted", "exec"), pasted)
    with pasted["service"]:
        assert pasted["training"].get_info().model_data.model_name == "big/model"
    told = server.output.partition("dashboard:")[0].splitlines()
    assert [line for line in told if len(line) > 80 and " INFO " not in line] == []


@pytest.mark.slow
def test_tokenizer_files_are_served_under_every_name(server: LiveServer) -> None:
    for name in (TINY, "big/model"):
        base = f"{server.url}/api/v1/models/{name}/tokenizer"
        status, found = ask(base, "tml-x")
        assert status == 200
        assert found == {
            "files": [
                "tokenizer.json",
                "tokenizer_config.json",
                "config.json",
                "generation_config.json",
            ]
        }
        assert ask(f"{base}/tokenizer.json", "tml-x")[1]["model"]
        assert ask(f"{base}/model.safetensors", "tml-x")[0] == 404
        assert ask(f"{base}/..%2f..%2ftinkex.db", "tml-x")[0] == 404
        assert ask(f"{base}/tokenizer.json")[0] == 401


@pytest.mark.slow
def test_an_interrupt_drains_and_exits_with_zero_and_a_restart_remembers(tmp_path: Path) -> None:
    with live_server(tmp_path / "home", "--model", TINY) as server:
        assert server.stop(signal.SIGINT) == 0
        assert "stopping" in server.output
    with live_server(tmp_path / "home", "--model", TINY, "--log-format", "json") as server:
        assert server.stop(signal.SIGTERM) == 0
        assert "Traceback" not in server.output


@pytest.mark.slow
def test_configured_keys_are_required_and_revoking_works_at_once(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "home")
    key, secret = keys.create("alice")
    with live_server(tmp_path / "home", "--model", TINY) as server:
        url = f"{server.url}/api/v1/training_runs"
        assert ask(url, secret)[0] == 200
        assert ask(url, "tml-anything")[0] == 401
        keys.revoke(key.id)
        status, found = ask(url, secret)
        assert (status, "revoked" in str(found["detail"])) == (401, True)
        assert secret not in server.output


@pytest.mark.slow
def test_the_log_follows_runs_saves_and_refusals_and_holds_no_key(tmp_path: Path) -> None:
    key = "tml-a-secret-of-mine"
    with live_server(tmp_path / "home", "--model", TINY, "--log-format", "json") as server:
        with tinkex.ServiceClient(base_url=server.url, api_key=key) as service:
            training = service.create_lora_training_client(TINY, rank=4)
            datum = tinkex.Datum(
                model_input=tinkex.ModelInput.from_ints([1, 2, 3]),
                loss_fn_inputs={"target_tokens": [2, 3, 4], "weights": [1.0, 1.0, 1.0]},
            )
            training.forward_backward([datum], "cross_entropy").result()
            training.optim_step(tinkex.AdamParams(learning_rate=1e-3)).result()
            training.save_state("one").result()
        assert ask(f"{server.url}/api/v1/training_runs", "secret-without-prefix")[0] == 401
        server.stop()
    told = [json.loads(line) for line in server.lines if line.startswith("{")]
    events = [record.get("event") for record in told]
    assert events == ["engine_loaded", "created", "stepped", "saved", "refused"]
    assert told[2]["step"] == 1
    assert told[2]["loss"] > 0
    assert "secret" not in server.output


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded_ends_the_server_with_one_line(
    tmp_path: Path, tiny_llama: Path
) -> None:
    """What only the engine can find: a tensor that the headers do not show to be missing."""
    folder = tmp_path / "broken"
    shutil.copytree(tiny_llama, folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors")
    process = start(tmp_path / "home", ["--model", str(folder)])
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1, output
    (line,) = [line for line in output.splitlines() if line.startswith("tinkex serve:")]
    assert "broken" in line
    assert "restart" not in line, "it ends"


@pytest.mark.slow
def test_an_engine_that_is_killed_while_it_loads_is_started_again_and_keeps_the_server(
    tmp_path: Path,
) -> None:
    """The home may have runs of people who wait: nobody starts a server again that has ended."""
    process = start(tmp_path / "home", ["--model", TINY])
    os.kill(_first_engine(process.pid), signal.SIGKILL)
    server = LiveServer(process, tmp_path / "home")
    assert "killed by SIGKILL; restarting" in server.output
    assert ask(f"{server.url}/api/v1/healthz")[0] == 200
    assert server.stop() == 0


def _first_engine(pid: int) -> int:
    """A server's child that becomes an engine, as soon as there is one."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                if b"engine.process.child" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
        time.sleep(0.01)
    raise AssertionError("the server started no engine")
