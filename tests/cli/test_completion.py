"""What shells are offered, and that their scripts ask for it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from support.command_line import (
    NOW,
    CommandLine,
    FakeClients,
    FakeRest,
    checkpoint,
    training_run,
)
from tinkex.cli.commands.completion import SCRIPTS


@pytest.fixture
def tinkex(tmp_path: Path) -> CommandLine:
    rest = FakeRest([checkpoint(1), checkpoint(2)], [training_run(1)])
    return CommandLine(FakeClients(rest), extra={"cache_folder": lambda: tmp_path / "cache"})


def offered(tinkex: CommandLine, *words: str) -> list[str]:
    ran = tinkex("__complete", *words)
    assert (ran.code, ran.err) == (0, "")
    return ran.out.splitlines()


def test_command_names_are_offered(tinkex: CommandLine) -> None:
    assert offered(tinkex, "mod") == ["model"]
    assert offered(tinkex, "checkpoint", "p") == ["publish", "push-hf"]
    assert "serve" in offered(tinkex, "")
    assert offered(tinkex, "--json", "run", "s") == ["sample", "stop"]
    assert offered(tinkex, "nothing", "x") == []


def test_options_and_their_choices_are_offered(tinkex: CommandLine) -> None:
    assert offered(tinkex, "run", "list", "--acc") == ["--access-scope"]
    assert offered(tinkex, "run", "list", "--access-scope", "") == ["owned", "accessible"]
    assert offered(tinkex, "-f", "") == ["table", "json"]
    assert offered(tinkex, "--ba") == ["--base-url"]
    assert offered(tinkex, "run", "--prompt-f") == ["--prompt-file"]
    assert offered(tinkex, "completion", "") == ["bash", "zsh", "fish"]


def test_files_are_offered_where_files_belong(
    tinkex: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "hello.txt").touch()
    monkeypatch.chdir(tmp_path)
    line = ("run", "sample", "--prompt-file", "he")
    assert offered(tinkex, *line) == ["hello.txt", "here/"]


def test_ids_come_from_the_server_once_a_minute(tinkex: CommandLine) -> None:
    rest = tinkex.clients._made["rest"]
    assert offered(tinkex, "run", "info", "") == ["run-1"]
    paths = [f"tinker://run-1/weights/000{n}" for n in (1, 2)]
    assert offered(tinkex, "checkpoint", "info", "tinker://run-1/w") == paths
    assert offered(tinkex, "checkpoint", "delete", paths[0], "tinker") == paths
    assert offered(tinkex, "checkpoint", "list", "--run-id", "r") == ["run-1"]
    assert len(rest.calls) == 2


def test_an_unreachable_server_offers_what_was_known_then_nothing(
    tinkex: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert offered(tinkex, "run", "info", "") == ["run-1"]
    tinkex.clients._made["rest"] = OSError("gone")
    for age, expected in ((59, ["run-1"]), (300, ["run-1"]), (601, [])):
        later: datetime = NOW + timedelta(seconds=age)
        monkeypatch.setattr("support.command_line.NOW", later)
        assert offered(tinkex, "run", "info", "") == expected


def test_accounts_do_not_share_what_is_remembered(tinkex: CommandLine) -> None:
    offered(tinkex, "run", "info", "")
    offered(tinkex, "--api-key", "tml-other", "run", "info", "")
    offered(tinkex, "run", "info", "--base-url", "http://y", "")
    assert len(tinkex.clients._made["rest"].calls) == 3


def test_the_embedded_server_is_not_started_to_complete_a_word(tinkex: CommandLine) -> None:
    assert offered(tinkex, "run", "info", "--local", "") == []
    assert tinkex.clients.connections == []
    tinkex("run", "list", "--local")
    tinkex("checkpoint", "list", "--local")
    tinkex.clients.connections.clear()
    assert offered(tinkex, "run", "info", "--local", "") == ["run-1"]
    assert len(offered(tinkex, "checkpoint", "info", "--local", "")) == 2
    assert tinkex.clients.connections == []


@pytest.mark.parametrize("shell", SCRIPTS)
def test_each_shell_has_a_script(tinkex: CommandLine, shell: str) -> None:
    ran = tinkex("completion", shell)
    assert ran.code == 0
    assert "tinkex __complete" in ran.out
    if shutil.which(shell):
        subprocess.run([shell, "-n", "/dev/stdin"], input=ran.out, text=True, check=True)


_ASK_BASH = """
eval "$(tinkex completion bash)"
COMP_LINE="$1"; COMP_POINT=${#1}
_tinkex_complete
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tinkex che", ["checkpoint"]),
        ("tinkex checkpoint ", None),
        ("tinkex run list --access-scope acc", ["accessible"]),
    ],
)
def test_bash_completes_with_the_real_command(
    tmp_path: Path, line: str, expected: list[str] | None
) -> None:
    command = tmp_path / "tinkex"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tinkex "$@"\n')
    command.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", _ASK_BASH, "bash", line],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    answers = done.stdout.split()
    assert answers == expected if expected else len(answers) == 10


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_bash_keeps_what_stands_before_a_colon(tmp_path: Path) -> None:
    command = tmp_path / "tinkex"
    command.write_text("#!/bin/sh\necho tinker://run:1/weights/0001\n")
    command.chmod(0o755)
    script = f"{SCRIPTS['bash']}\nCOMP_WORDBREAKS=':'\n" + _ASK_BASH.replace(
        'eval "$(tinkex completion bash)"', ""
    )
    done = subprocess.run(
        ["bash", "-c", script, "bash", "tinkex checkpoint info tinker://run:1/w"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "1/weights/0001\n"
