"""Finds the command a line means and runs it.

Help, version and mistakes are answered here from the static table; only a command that has been
found is handed to the parser library. Our own because `--help` then costs 6 ms over the bare
interpreter (`benchmarks/cli_startup.py`); loading click alone takes several times that.
"""

from __future__ import annotations

from tinkex.cli.line.arguments import (
    HELP_OPTIONS,
    Tokens,
    UsageMistake,
    no_such_option,
    wants_json,
)
from tinkex.cli.line.result import OK, WRONG_USAGE, CommandResult
from tinkex.cli.line.table import COMMANDS, RENAMED, Command, Group

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

    from tinkex.cli.outside.dependencies import Dependencies

COMPLETE = "__complete"  # what the completion scripts call; not a command for people


class Streams:
    """Where results (`out`) and everything else (`err`) are written."""

    __slots__ = ("err", "out")

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self.out = out
        self.err = err

    def say(self, line: str) -> None:
        """Writes a line that is not the result; a closed stream is no reason to fail."""
        try:
            self.err.write(f"{line}\n")
            self.err.flush()
        except (OSError, ValueError):
            pass


def dispatch(argv: list[str], deps: Dependencies | None, streams: Streams) -> CommandResult:
    """Runs the command line `argv`."""
    tokens = Tokens(argv)
    try:
        return _from_root(tokens, deps, streams)
    except UsageMistake as mistake:
        return _mistake(tokens, streams, str(mistake), "tinkex", f"Error: {mistake}")


def _from_root(tokens: Tokens, deps: Dependencies | None, streams: Streams) -> CommandResult:
    from tinkex.cli.line.help import root_help

    word = tokens.next_word()
    if word is None:
        return _wrong(streams, root_help().rstrip())
    if word in HELP_OPTIONS:
        return _print(streams, root_help())
    if word == COMPLETE:
        from tinkex.cli.line.completion import complete

        return _print(streams, complete(tokens.rest, deps))
    if word == "help":
        return _explain(tokens, deps, streams)
    if word in RENAMED:
        word, rest = RENAMED[word]
        tokens.put_back(rest)
    entry = COMMANDS.get("version" if word == "--version" else word)
    if isinstance(entry, Group):
        return _from_group(entry, tokens, deps, streams)
    if entry is not None:
        return _run(entry, (entry.name,), tokens, deps, streams)
    if word.startswith("-"):
        raise no_such_option(word)
    return _unknown(word, None, tokens, streams)


def _explain(tokens: Tokens, deps: Dependencies | None, streams: Streams) -> CommandResult:
    """`tinkex help run list` is `tinkex run list --help`, as in other programs."""
    return dispatch([*tokens.rest, "--help"], deps, streams)


def _from_group(
    group: Group, tokens: Tokens, deps: Dependencies | None, streams: Streams
) -> CommandResult:
    from tinkex.cli.line.help import group_help

    word = tokens.next_word()
    if word is None:
        return _wrong(streams, group_help(group).rstrip())
    if word in HELP_OPTIONS:
        return _print(streams, group_help(group))
    command = group.find(word)
    if command is None and word.startswith("-") and group.default is not None:
        tokens.put_back(word)
        command = group.commands[group.default]
    if command is None and word.startswith("-"):
        raise no_such_option(word)
    if command is None:
        return _unknown(word, group, tokens, streams)
    return _run(command, (group.name, command.name), tokens, deps, streams)


def _run(
    command: Command,
    words: tuple[str, ...],
    tokens: Tokens,
    deps: Dependencies | None,
    streams: Streams,
) -> CommandResult:
    if words == ("version",):
        from tinkex.cli.line.version import quick_version

        answer = quick_version(tokens)
        if answer is not None:
            return _print(streams, answer)
    from tinkex.cli.line.invoke import invoke

    return invoke(command, words, tokens, deps, streams)


def _print(streams: Streams, text: str) -> CommandResult:
    streams.out.write(text)
    return CommandResult(OK)


def _unknown(word: str, group: Group | None, tokens: Tokens, streams: Streams) -> CommandResult:
    from tinkex.cli.line.help import unknown_command

    place = f"tinkex {group.name}" if group else "tinkex"
    told = unknown_command(word, group)
    return _mistake(tokens, streams, f"No such command '{word}'.", place, told)


def _mistake(
    tokens: Tokens, streams: Streams, message: str, place: str, told: str
) -> CommandResult:
    """Says what is wrong: `told` to a person, `message` to a program."""
    see = f"See: {place} --help"
    if not wants_json(tokens):
        return _wrong(streams, f"{told}\n{see}")
    from tinkex.cli.errors import CliError
    from tinkex.cli.terminal.output import write_json

    write_json(CliError(message, None, see, WRONG_USAGE).to_dict(), streams.err)
    return CommandResult(WRONG_USAGE)


def _wrong(streams: Streams, text: str) -> CommandResult:
    streams.say(text)
    return CommandResult(WRONG_USAGE)
