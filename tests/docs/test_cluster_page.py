"""docs/cluster.md, the section about Ray: its commands, run in the order in which it gives them.

Changed are only places: the head's address, ports, and folders that a test must not share. Ray's
commands stay in the foreground, so that they end with the test.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from support.documents import DOCS, ROOT, blocks
from support.live_server import live_server

RAY = Path(sys.executable).with_name("ray")
SMALL = ["--object-store-memory=100000000", "--block"]
END_S = 30


def _commands() -> list[list[str]]:
    """Those of the section, as words."""
    page = DOCS / "cluster.md"
    text = page.read_text()
    start = text[: text.index("\n## Ray\n")].count("\n")
    end = text.find("\n## ", text.index("\n## Ray\n") + 1)
    last = text[:end].count("\n") if end > 0 else text.count("\n")
    found = [b for b in blocks(page) if b.language == "console" and start < b.line < last]
    lines = [line for block in found for line in block.code.splitlines()]
    return [shlex.split(line.removeprefix("$ "), comments=True) for line in lines]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


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


@pytest.mark.slow
def test_the_commands_about_ray_lead_to_a_server(tmp_path: Path) -> None:
    port, temporary = _free_port(), Path(f"/tmp/tinkex-ray-{os.getpid()}")
    environ = {**os.environ, "RAY_ADDRESS": f"127.0.0.1:{port}", "TINKEX_CACHE": str(tmp_path)}
    done = []
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        for words in _commands():
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
