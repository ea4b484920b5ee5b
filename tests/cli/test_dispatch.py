"""Finding the command a line means: help, version, mistakes, bare forms, options anywhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tinkex.cli.main as main_module
from support.command_line import CommandLine, FakeClients, FakeRest, checkpoint, training_run
from tinkex.cli.line.table import COMMANDS, Group

GROUPS = [name for name, entry in COMMANDS.items() if isinstance(entry, Group)]
LEAVES = [
    *((name,) for name, entry in COMMANDS.items() if not isinstance(entry, Group)),
    *((g, c) for g in GROUPS for c in COMMANDS[g].commands),
]


@pytest.fixture
def tinkex() -> CommandLine:
    rest = FakeRest([checkpoint(1)], [training_run(1)])
    return CommandLine(FakeClients(rest=rest))


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_root_help_lists_every_command_with_its_line(tinkex: CommandLine, flag: str) -> None:
    ran = tinkex(flag)
    assert ran.code == 0
    assert ran.err == ""
    for name, entry in COMMANDS.items():
        assert f"  {name}" in ran.out
        assert entry.summary in ran.out


@pytest.mark.parametrize("group", GROUPS)
def test_group_help_lists_its_commands(tinkex: CommandLine, group: str) -> None:
    ran = tinkex(group, "--help")
    entry = COMMANDS[group]
    assert isinstance(entry, Group)
    assert ran.code == 0
    for command in entry.commands.values():
        assert command.summary in ran.out


@pytest.mark.parametrize("words", [[], *([group] for group in GROUPS)], ids=" ".join)
def test_help_fits_in_eighty_columns(tinkex: CommandLine, words: list[str]) -> None:
    assert max(map(len, tinkex(*words, "--help").out.splitlines())) <= 80


@pytest.mark.parametrize("words", [[], ["run"], ["run", "list"], ["models"]], ids=" ".join)
def test_help_is_a_command_too(tinkex: CommandLine, words: list[str]) -> None:
    ran = tinkex("help", *words)
    assert (ran.code, ran.out) == (0, tinkex(*words, "--help").out)


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_every_command_explains_itself(
    tinkex: CommandLine, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tinkex(*words, "-h")
    assert ran.code == 0, ran.err
    assert ran.out.startswith(f"Usage: tinkex {' '.join(words)} [OPTIONS]")
    assert "--base-url" in ran.out
    assert ran.err == ""
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, tinkex(*words, "-h").out.splitlines())) <= 80


@pytest.mark.parametrize("line", [[], ["run"], ["checkpoint", "--json"]])
def test_a_bare_line_prints_help_on_stderr_and_is_wrong_usage(
    tinkex: CommandLine, line: list[str]
) -> None:
    ran = tinkex(*line)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("Usage: tinkex")


@pytest.mark.parametrize(
    ("line", "meant"),
    [(["chekpoint"], "'checkpoint'"), (["run", "smaple"], "'sample'"), (["zzz"], None)],
)
def test_an_unknown_command_is_named_with_the_nearest(
    tinkex: CommandLine, line: list[str], meant: str | None
) -> None:
    ran = tinkex(*line)
    assert ran.code == 2
    assert f"No such command '{line[-1]}'" in ran.err
    assert (f"Did you mean {meant}?" in ran.err) is (meant is not None)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (["--jsn", "run", "list"], "No such option '--jsn'. Did you mean '--json'?"),
        (["engine", "--lcal"], "No such option '--lcal'. Did you mean '--local'?"),
        (["--base_url=http://x", "top"], "No such option '--base_url'. Did you mean '--base-url'?"),
        (["--zzzzz"], "No such option '--zzzzz'."),
    ],
)
def test_an_unknown_option_before_the_command_is_named_with_the_nearest(
    tinkex: CommandLine, line: list[str], told: str
) -> None:
    assert f"Error: {told}\n" in tinkex(*line).err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["run", "list", "--limit", "abc"], "'abc' is not a whole number."),
        (["run", "sample", "--temperature", "hot"], "'hot' is not a number."),
    ],
)
def test_a_word_where_a_number_belongs_is_named_plainly(
    tinkex: CommandLine, line: list[str], words: str
) -> None:
    assert words in tinkex(*line).err


@pytest.mark.parametrize(
    "line",
    [
        ["--bogus"],
        ["auth", "--bogus"],
        ["run", "list", "--bogus"],
        ["-f", "xml", "run", "list"],
        ["run", "list", "-f", "xml"],
        ["-f"],
        ["--timeout", "soon", "run", "list"],
        ["run", "info"],
        ["run", "list", "--limit", "-1"],
        ["--local", "run", "list", "--base-url", "http://y"],
        ["run", "list", "-c", "bogus"],
        ["serve", "--device", "bogus"],
        ["serve", "--dtype", "float7"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_2_and_says_what_and_where(tinkex: CommandLine, line: list[str]) -> None:
    ran = tinkex(*line)
    assert ran.code == 2
    assert "Error: " in ran.err
    assert "See: tinkex" in ran.err
    assert ran.out == ""


@pytest.mark.parametrize(
    "line",
    [
        ["--json", "run", "list"],
        ["run", "--json", "list"],
        ["run", "list", "--json"],
        ["-f", "json", "run", "list"],
        ["run", "list", "--format=json"],
        ["-fjson", "run", "list"],
        ["-f", "table", "run", "list", "-f", "json"],
    ],
    ids=" ".join,
)
def test_the_format_may_stand_anywhere_and_the_last_wins(
    tinkex: CommandLine, line: list[str]
) -> None:
    assert tinkex(*line).out.startswith('{\n  "runs": [')


@pytest.mark.parametrize("before", [True, False])
def test_connection_flags_work_before_and_after_the_command(
    tinkex: CommandLine, before: bool
) -> None:
    flags = ["--api-key", "tml-k", "--base-url", "http://y", "--timeout", "1500"]
    line = [*flags, "run", "list"] if before else ["run", "list", *flags]
    assert tinkex(*line).code == 0
    (connection,) = tinkex.clients.connections
    assert connection.api_key == "tml-k"
    assert connection.base_url == "http://y"
    assert connection.timeout == 1.5
    assert "tml-k" not in repr(connection)


@pytest.mark.parametrize(("text", "seconds"), [("250", 0.25), ("30s", 30.0), ("2m", 120.0)])
def test_a_bare_timeout_is_milliseconds(tinkex: CommandLine, text: str, seconds: float) -> None:
    tinkex("run", "list", "--timeout", text)
    assert tinkex.clients.connections[0].timeout == seconds


def test_local_means_the_embedded_server(tinkex: CommandLine) -> None:
    tinkex("checkpoint", "list", "--local")
    assert tinkex.clients.connections[0].base_url == "local"


def test_bare_options_are_routed_to_create_and_sample(tinkex: CommandLine) -> None:
    create = tinkex("checkpoint", "--base-model", "m")
    assert create.code == 2
    assert "--output is required for checkpoint command" in create.err
    sample = tinkex("run", "--base-url", "http://y", "--max-tokens", "3")
    assert sample.code == 2
    assert "Missing prompt. Provide --prompt or --prompt-file" in sample.err


def test_save_is_another_name_for_create(tinkex: CommandLine) -> None:
    assert "tinkex checkpoint create" in tinkex("checkpoint", "save", "--help").out


def test_clients_are_closed_with_how_the_command_ended(tinkex: CommandLine) -> None:
    tinkex("run", "list")
    tinkex("run", "info", "nobody")
    assert tinkex.clients.closed == ["success", "errored"]


def test_an_interrupt_returns_130_without_a_traceback(tinkex: CommandLine) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    tinkex.clients._made["rest"].list_training_runs = interrupted
    ran = tinkex("run", "list")
    assert ran.code == 130
    assert ran.err == "Interrupted.\n"
    assert tinkex.clients.closed == ["interrupted"]


def test_only_main_ends_the_process() -> None:
    package = Path(main_module.__file__).parent
    leaves = re.compile(r"\b(sys\.exit|os\._exit|raise SystemExit)\b")
    found = [p.name for p in package.rglob("*.py") if leaves.search(p.read_text())]
    assert found == ["main.py"]
