"""docs/cluster.md: every command on it, run in the order in which the page gives them.

Changed are only places: addresses, ports, and folders that a test must not share. Ray's commands
stay in the foreground, so that they end with the test. Servers that are not on Ray are let go once
they answer: that their engines load is others' to test.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from support.documents import DOCS, ROOT, blocks
from support.live_server import live_server
from support.object_service import BUCKET, ObjectService, object_service
from support.postgres import Postgres

RAY = Path(sys.executable).with_name("ray")
TINKEX = [sys.executable, "-m", "tinkex"]
SMALL = ["--object-store-memory=100000000", "--block"]
END_S = 120
_ADDRESS = re.compile(r"http://[\d.:]+")

pytestmark = pytest.mark.slow


def _commands() -> Iterator[tuple[str, list[str]]]:
    """Each with the heading it stands under, as words."""
    page = DOCS / "cluster.md"
    lines = page.read_text().splitlines()
    for block in [block for block in blocks(page) if block.language == "console"]:
        above = [line for line in lines[: block.line] if line.startswith("## ")]
        for line in block.code.splitlines():
            yield above[-1].removeprefix("## "), shlex.split(line.removeprefix("$ "), comments=True)


def _of(heading: str) -> list[list[str]]:
    return [words for above, words in _commands() if above.startswith(heading)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_every_command_stands_under_a_heading_whose_commands_are_run() -> None:
    found = Counter(heading for heading, _ in _commands())
    assert found == {
        "Every GPU of a machine": 2,
        "Ray": 4,
        "PostgreSQL, and a second server that takes over": 4,
        "Object store": 4,
    }


# ---- one machine, PostgreSQL, an object store


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Of two servers on one machine, started and stopped as the page says."""
    made = []
    for number, words in enumerate(_of("Every GPU")):
        home = tmp_path_factory.mktemp("homes") / str(number)
        _serve([*words, "--home", str(home)], os.environ.copy())
        made.append(home)
    return made


def _serve(words: list[str], environ: dict[str, str]) -> None:
    """Until the server answers; then it is told to stop, and ends well."""
    process = subprocess.Popen(
        [*TINKEX, *words[1:], "--port", "0"],
        env={**environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        assert process.stdout is not None
        heard = []
        for line in process.stdout:
            heard.append(line)
            if found := _ADDRESS.search(line):
                assert _answers(found.group())
                process.send_signal(signal.SIGINT)
                break
        heard.append(process.communicate(timeout=END_S)[0])
    assert process.returncode == 0, "".join(heard)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/api/v1/healthz", timeout=END_S):
            return True
    except urllib.error.HTTPError as error:  # its engines are still loading
        with error:
            return error.code == 503


def _run(words: list[str], environ: dict[str, str]) -> str:
    done = subprocess.run(
        [*TINKEX, *words[1:]], env=environ, capture_output=True, text=True, timeout=END_S * 2
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_commands_about_postgresql_lead_to_a_server_and_move_a_home(
    tmp_path: Path, homes: list[Path], postgres: Postgres
) -> None:
    environ, done = os.environ.copy(), []
    for words in _of("PostgreSQL"):
        match words:
            case ["pip", "install", package]:
                _check_extras(package)
            case ["export", setting]:
                name, _, value = setting.partition("=")
                assert value.startswith("postgresql://")
                environ[name] = postgres.new_database()
            case ["tinkex", "serve", *_, "--home", _]:
                _serve([*words[:-1], str(tmp_path / "shared")], environ)
                assert not (tmp_path / "shared" / "tinkex.db").exists()
            case ["tinkex", "home", "migrate", "--home", _, "--to", _]:
                places = ["--home", str(homes[0]), "--to", postgres.new_database()]
                assert "PostgreSQL" in _run([*words[:3], *places], environ)
                assert (homes[0] / "tinkex.db.moved").exists()
            case _:
                raise AssertionError(f"the page has a command that no test runs: {words}")
        done.append(words[1])
    assert done[2:] == ["serve", "home"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectService]:
    with object_service(tmp_path_factory.mktemp("service") / "data") as running:
        yield running


def test_the_commands_about_an_object_store_lead_to_a_server_and_move_a_home(
    tmp_path: Path, homes: list[Path], service: ObjectService
) -> None:
    environ, done = os.environ.copy(), []
    for number, words in enumerate(_of("Object store")):
        bucket = f"s3://{BUCKET}/{number}"
        given = [word.replace("s3://my-bucket/tinkex", bucket) for word in words]
        match given:
            case ["pip", "install", package]:
                _check_extras(package)
            case ["export", *settings]:
                assert {each.partition("=")[0] for each in settings} <= set(service.environ)
            case ["tinkex", "serve", *rest]:
                assert bucket in rest
                _serve([*given, "--home", str(tmp_path / "home")], environ)
            case ["tinkex", "home", "migrate", *rest]:
                assert bucket in rest
                assert bucket in _run(given, {**environ, "TINKEX_HOME": str(homes[1])})
            case _:
                raise AssertionError(f"the page has a command that no test runs: {words}")
        done.append(given[1])
    assert done[2:] == ["serve", "home"]


# ---- Ray


@contextmanager
def _foreground(words: list[str], environ: dict[str, str], said: str) -> Iterator[None]:
    """A command that stays, from the moment it has said something until the block ends."""
    process = subprocess.Popen(
        words,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        heard = []
        for line in process.stdout:
            heard.append(line)
            if said in line:
                break
        else:
            raise AssertionError("".join(heard))
        yield
    finally:
        process.terminate()
        process.communicate(timeout=END_S)


def test_the_commands_about_ray_lead_to_a_server(tmp_path: Path) -> None:
    port, temporary = _free_port(), Path(f"/tmp/tinkex-ray-{os.getpid()}")
    environ = {**os.environ, "RAY_ADDRESS": f"127.0.0.1:{port}", "TINKEX_CACHE": str(tmp_path)}
    environ["RAY_worker_niceness"] = "0"  # or they hardly run beside other tests
    done = []
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        for words in _of("Ray"):
            given = [word.replace("HEAD:6379", f"127.0.0.1:{port}") for word in words]
            match given:
                case ["pip", "install", package]:
                    _check_extras(package)
                case ["ray", "start", *rest]:
                    rest = [re.sub(r"^--port=6379$", f"--port={port}", word) for word in rest]
                    own = [*SMALL]
                    if "--head" in rest:
                        own += [f"--temp-dir={temporary}", "--include-dashboard=false"]
                    start = [str(RAY), "start", *rest, *own]
                    stack.enter_context(_foreground(start, environ, "--block"))
                case ["tinkex", "serve", *rest]:
                    patch.setenv("RAY_ADDRESS", environ["RAY_ADDRESS"])
                    server = stack.enter_context(live_server(tmp_path / "home", *rest))
                    assert server.process.poll() is None
                case _:
                    raise AssertionError(f"the page has a command that no test runs: {words}")
            done.append(given[0])
    assert done == ["pip", "ray", "ray", "tinkex"]
    assert server.process.returncode == 0
    shutil.rmtree(temporary, ignore_errors=True)


def _check_extras(package: str) -> None:
    extras = re.fullmatch(r"tinkex\[(.*)\]", package)
    assert extras is not None, package
    project = (ROOT / "pyproject.toml").read_text()
    assert all(re.search(rf"^{extra} = \[", project, re.M) for extra in extras[1].split(","))
