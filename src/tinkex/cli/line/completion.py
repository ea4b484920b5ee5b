"""What a shell may offer for the word being typed.

The scripts of `tinkex completion` ask through `tinkex __complete WORD...`, the last word being the
unfinished one. Command names come from the static table; only options need a command's parser, and
only ids need a server, which is asked at most once a minute.
"""

from __future__ import annotations

from tinkex.cli.line.arguments import (
    FLAG_OPTIONS,
    HELP_OPTIONS,
    VALUE_OPTIONS,
    Tokens,
    UsageMistake,
)
from tinkex.cli.line.table import COMMANDS, Command, Group

TYPE_CHECKING = False
if TYPE_CHECKING:
    import click

    from tinkex.cli.outside.dependencies import Connection, Dependencies

_GLOBAL = sorted([*VALUE_OPTIONS, *FLAG_OPTIONS, *HELP_OPTIONS])
_FORMATS = ["table", "json"]


def complete(words: list[str], deps: Dependencies | None) -> str:
    """The candidates for the last of `words`, one a line. Never fails: no help is no offence."""
    *before, current = words or [""]
    try:
        candidates = _candidates(before, current, deps)
    except Exception:
        candidates = []
    return "".join(f"{word}\n" for word in candidates if word.startswith(current))


def _candidates(before: list[str], current: str, deps: Dependencies | None) -> list[str]:
    if before and VALUE_OPTIONS.get(before[-1]) == "format":
        return _FORMATS
    tokens = Tokens(before)
    try:
        word = tokens.next_word()
    except UsageMistake:
        return []
    if word is None:
        return [*_GLOBAL, "--version"] if current.startswith("-") else list(COMMANDS)
    entry = COMMANDS.get(word)
    if isinstance(entry, Group):
        return _in_group(entry, tokens, current, deps)
    return _in_command(entry, tokens, current, deps) if entry else []


def _in_group(group: Group, tokens: Tokens, current: str, deps: Dependencies | None) -> list[str]:
    word = tokens.next_word()
    if word is None and not current.startswith("-"):
        return list(group.commands)
    default = group.commands.get(group.default or "")
    command = group.find(word) if word else default
    if command is None and word is not None and word.startswith("-"):
        tokens.put_back(word)
        command = default
    return _in_command(command, tokens, current, deps) if command else _GLOBAL


def _in_command(
    command: Command, tokens: Tokens, current: str, deps: Dependencies | None
) -> list[str]:
    from tinkex.cli.line.invoke import load

    leaf, before = load(command), tokens.rest
    options = {name: p for p in leaf.params for name in p.opts if p.param_type_name == "option"}
    last = before[-1] if before else ""
    if last in options and not getattr(options[last], "is_flag", False):
        return _values(options[last], current, tokens, deps)
    if current.startswith("-"):
        return sorted([*options, *HELP_OPTIONS])
    argument = next((p for p in leaf.params if p.param_type_name == "argument"), None)
    return _values(argument, current, tokens, deps) if argument is not None else []


def _values(
    param: click.Parameter, current: str, tokens: Tokens, deps: Dependencies | None
) -> list[str]:
    import click

    from tinkex.cli.line.remembered import KINDS

    if isinstance(param.type, click.Choice):
        return [str(choice) for choice in param.type.choices]
    if isinstance(param.type, click.Path) or param.metavar == "FILE":
        return _files(current)
    kind = next((kind for name, kind in KINDS.items() if name == param.name), None)
    return _ids(kind, tokens, deps) if kind else []


def _ids(kind: str, tokens: Tokens, deps: Dependencies | None) -> list[str]:
    from tinkex.cli.line.remembered import remembered_ids
    from tinkex.cli.outside.dependencies import Dependencies

    return remembered_ids(kind, _connection(tokens), deps or Dependencies())


def _connection(tokens: Tokens) -> Connection:
    """The server the line is about: its connection flags may stand anywhere."""
    from tinkex.cli.outside.dependencies import Connection

    try:
        while tokens.next_word() is not None:
            pass
    except UsageMistake:
        pass
    given = tokens.options
    url = "local" if given.get("local") else given.get("base_url")
    key = given.get("api_key")
    return Connection(str(key) if key else None, str(url) if url else None)


def _files(current: str) -> list[str]:
    import glob
    import os

    found = sorted(glob.glob(glob.escape(current) + "*"))
    return [f"{path}/" if os.path.isdir(path) else path for path in found]
