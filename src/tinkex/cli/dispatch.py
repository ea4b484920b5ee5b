"""Finds the command a line means and runs it.

Help, version and mistakes are answered here from the static table; only a command that has been
found is handed to the parser library.
"""

from __future__ import annotations

from tinkex.cli.arguments import HELP_OPTIONS, Tokens, UsageMistake
from tinkex.cli.result import OK, WRONG_USAGE, CommandResult
from tinkex.cli.table import COMMANDS, Command, Group

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

    from tinkex.cli.dependencies import Dependencies

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
        return _wrong(streams, f"Error: {mistake}\nSee: tinkex --help")


def _from_root(tokens: Tokens, deps: Dependencies | None, streams: Streams) -> CommandResult:
    from tinkex.cli.help import root_help, unknown_command

    word = tokens.next_word()
    if word is None:
        return _wrong(streams, root_help().rstrip())
    if word in HELP_OPTIONS:
        return _print(streams, root_help())
    if word == COMPLETE:
        from tinkex.cli.completion import complete

        return _print(streams, complete(tokens.rest, deps))
    entry = COMMANDS.get("version" if word == "--version" else word)
    if isinstance(entry, Group):
        return _from_group(entry, tokens, deps, streams)
    if entry is not None:
        return _run(entry, (entry.name,), tokens, deps, streams)
    if word.startswith("-"):
        raise UsageMistake(f"No such option: {word}")
    return _wrong(streams, unknown_command(word, None).rstrip())


def _from_group(
    group: Group, tokens: Tokens, deps: Dependencies | None, streams: Streams
) -> CommandResult:
    from tinkex.cli.help import group_help, unknown_command

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
        raise UsageMistake(f"No such option: {word}")
    if command is None:
        return _wrong(streams, unknown_command(word, group).rstrip())
    return _run(command, (group.name, command.name), tokens, deps, streams)


def _run(
    command: Command,
    words: tuple[str, ...],
    tokens: Tokens,
    deps: Dependencies | None,
    streams: Streams,
) -> CommandResult:
    if words == ("version",):
        from tinkex.cli.version import quick_version

        answer = quick_version(tokens)
        if answer is not None:
            return _print(streams, answer)
    from tinkex.cli.invoke import invoke

    return invoke(command, words, tokens, deps, streams)


def _print(streams: Streams, text: str) -> CommandResult:
    streams.out.write(text)
    return CommandResult(OK)


def _wrong(streams: Streams, text: str) -> CommandResult:
    streams.say(text)
    return CommandResult(WRONG_USAGE)
