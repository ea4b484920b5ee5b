"""Every code block in README and the guides does what it says.

Python blocks of a page run in order in one namespace, against the embedded server, or against a
`tinkex serve` where a page gives its usual address. The model that the pages name is replaced by a
tiny one, so that a page takes seconds, and the address by the real one; nothing else is changed.
Blocks marked `no-run: reason` are counted. Console blocks may only name commands, options, targets
and scripts that exist.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import tinkex
from support.client_packages import python_for
from support.documents import ROOT, Block, blocks, pages
from support.embedded import embedded_server
from support.ending import ended_well
from support.live_server import live_server
from tinkex.cli.line.table import COMMANDS, Command, Group

SHOWN_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
TEST_MODEL = "tinkex/tiny-llama"
SHOWN_ADDRESS = "http://127.0.0.1:8000"
ADDRESSED = (f'base_url="{SHOWN_ADDRESS}', f'"base_url": "{SHOWN_ADDRESS}', f'", "{SHOWN_ADDRESS}')
README = ROOT / "README.md"
NOT_RUN = 4
"""How many Python blocks do not run, in all pages. Raise it only with a reason in the block."""

PYTHON_PAGES = [page for page in pages() if any(b.language == "python" for b in blocks(page))]
CONSOLE = [block for page in pages() for block in blocks(page) if block.language == "console"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One embedded server for all pages: a page does not wait for a model to load."""
    with embedded_server(tmp_path_factory.mktemp("home"), TEST_MODEL):
        yield


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A `tinkex serve` in a process of its own."""
    with live_server(tmp_path_factory.mktemp("served"), "--model", TEST_MODEL) as live:
        yield live.url


@pytest.mark.slow
@pytest.mark.parametrize("page", PYTHON_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_blocks_run(
    page: Path,
    server: None,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    sources = [_source(block) for block in _runnable(page)]
    if not any(quoted in source for source in sources for quoted in ADDRESSED):
        _run(sources, page)
        return
    python = python_for(sources)
    address = request.getfixturevalue("address")
    _run_apart([source.replace(SHOWN_ADDRESS, address) for source in sources], tmp_path, python)


@pytest.mark.slow
def test_the_readme_runs_on_a_served_address_too(address: str, tmp_path: Path) -> None:
    local = 'ADDRESS = "local"'
    changed = [
        _source(block).replace(local, f"ADDRESS = {address!r}") for block in _runnable(README)
    ]
    assert any(address in source for source in changed)
    _run_apart(changed, tmp_path)


def test_blocks_that_do_not_run_say_why_and_are_few() -> None:
    skipped = [b for page in PYTHON_PAGES for b in blocks(page) if b.notes.startswith("no-run")]
    assert all(re.match(r"no-run: \w+", block.notes) for block in skipped), skipped
    assert len(skipped) == NOT_RUN, [block.where for block in skipped]


def test_every_python_block_compiles() -> None:
    for page in PYTHON_PAGES:
        for block in blocks(page):
            if block.language == "python":
                compile(_source(block), str(page), "exec")


@pytest.mark.parametrize("block", CONSOLE, ids=lambda block: block.where)
def test_console_blocks_name_things_that_exist(block: Block) -> None:
    for line in block.code.replace("\\\n", " ").splitlines():
        for command in re.split(r"&&|\|", line):
            _check_command(shlex.split(command, comments=True), f"{block.where}: {command.strip()}")


def _runnable(page: Path) -> list[Block]:
    return [b for b in blocks(page) if b.language == "python" and not b.notes.startswith("no-run")]


def _source(block: Block) -> str:
    # Blank lines in front make the line numbers of a traceback those of the page.
    return "\n" * (block.line - 1) + block.code.replace(SHOWN_MODEL, TEST_MODEL)


def _run(sources: list[str], page: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "__page__"}
    try:
        for source in sources:
            exec(compile(source, str(page), "exec"), namespace)
    finally:
        _close_clients(namespace)


def _run_apart(sources: list[str], folder: Path, python: str = sys.executable) -> None:
    """As a script of its own: pages about other programs may leave open what is not ours."""
    script = folder / "page.py"
    text = "\n".join([*(source.lstrip("\n") for source in sources), 'print("read to its end")'])
    script.write_text(text, encoding="utf-8")
    environ = {**os.environ, "TINKER_API_KEY": "tml-reader", "TINKER_TELEMETRY": "0"}
    done = subprocess.run(
        [python, str(script)],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.endswith("read to its end\n"), done.stdout + done.stderr
    assert ended_well(done.returncode, official="import tinker " in text), done.stderr


def _close_clients(namespace: dict[str, Any]) -> None:
    for value in namespace.values():
        if isinstance(value, tinkex.ServiceClient):
            value.close("success").result(timeout=30)


def _check_command(words: list[str], where: str) -> None:
    while words and re.fullmatch(r"\$|export|[A-Z_]+=.*", words[0]):
        words = words[1:]
    if not words:
        return
    program = Path(words[0]).name
    if program == "tinkex":
        _check_tinkex(words[1:], where)
    elif program == "make":
        _check_make(words[1:], where)
    elif program.startswith("python"):
        _check_python(words[1:], where)


def _check_tinkex(words: list[str], where: str) -> None:
    if not words or words[0].startswith("-"):
        return
    entry = COMMANDS.get(words[0])
    assert entry is not None, f"{where}: no command {words[0]!r}"
    rest = words[1:]
    if isinstance(entry, Group):
        if not rest or (rest[0].startswith("-") and entry.default is None):
            return
        name = entry.default if rest[0].startswith("-") else rest[0]
        group, entry = entry, entry.find(str(name))
        assert entry is not None, f"{where}: no command {group.name} {name!r}"
    _check_options(entry, [word for word in rest if word.startswith("-") and word != "-"], where)


def _check_options(entry: Command, given: list[str], where: str) -> None:
    module, _, attribute = entry.target.partition(":")
    command = getattr(import_module(module), attribute)
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    unknown = [word for word in given if word.partition("=")[0] not in known | {"-h", "--help"}]
    assert not unknown, f"{where}: no option {unknown} of tinkex {entry.name}"


def _check_make(words: list[str], where: str) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    unknown = [word for word in words if "=" not in word and word not in targets]
    assert not unknown, f"{where}: no make target {unknown}"


def _check_python(words: list[str], where: str) -> None:
    if not words or not words[0].endswith(".py") or "/" not in words[0]:
        return
    assert (ROOT / words[0]).is_file(), f"{where}: no script {words[0]}"
