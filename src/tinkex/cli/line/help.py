"""The help of the program and of its groups, and what to say about a word that is no command.

Works from the command table alone and imports no parser library.
"""

from __future__ import annotations

from tinkex.cli.line.table import COMMANDS, Command, Group

_OPTIONS = """Options, before or after any command:
  -f, --format [table|json]  How to print the result.
  --json                     Short for --format json.
  --api-key KEY              The key to use instead of the configured one.
  --base-url URL             The server to talk to.
  --timeout TIME             The longest wait: 30s, 2m; a bare number is in ms.
  --local                    Use the server embedded in this machine's tinkex.
  --verbose                  Show the traceback of an error.
  -h, --help                 Show help."""


def root_help() -> str:
    """What `tinkex --help` prints."""
    return (
        "Usage: tinkex [OPTIONS] COMMAND [ARGS]...\n\n"
        "  Fine-tune and sample language models: on a Tinker server, or on this machine.\n\n"
        f"Commands:\n{_rows(COMMANDS)}\n\n"
        f"{_OPTIONS}\n  --version                  Show version information.\n\n"
        "Nothing set up yet? Type: tinkex demo\n"
    )


def group_help(group: Group) -> str:
    """What `tinkex GROUP --help` prints."""
    bare = ""
    if group.default is not None:
        target = f"tinkex {group.name} {group.default}"
        bare = f"\nOptions without a command go to '{target}'.\n"
    return (
        f"Usage: tinkex {group.name} [OPTIONS] COMMAND [ARGS]...\n\n  {group.summary}\n\n"
        f"Commands:\n{_rows(group.commands)}\n{bare}\n"
        "Options of every command: tinkex --help\n"
    )


def unknown_command(word: str, group: Group | None) -> str:
    """What to say about a word that names no command, with the nearest ones that exist."""
    known = group.commands if group else COMMANDS
    place = f"tinkex {group.name}" if group else "tinkex"
    near = _nearest(word, known)
    meant = f"Did you mean {' or '.join(repr(name) for name in near)}?\n" if near else ""
    return (
        f"Usage: {place} [OPTIONS] COMMAND [ARGS]...\n\n"
        f"Error: No such command '{word}'.\n{meant}".rstrip()
    )


def _nearest(word: str, known: dict[str, Command] | dict[str, Group | Command]) -> list[str]:
    from difflib import get_close_matches

    aliases = [a for entry in known.values() if isinstance(entry, Command) for a in entry.aliases]
    return get_close_matches(word, [*known, *aliases], n=2, cutoff=0.5)


def _rows(entries: dict[str, Command] | dict[str, Group | Command]) -> str:
    width = max(len(name) for name in entries)
    return "\n".join(f"  {name:{width}}  {entry.summary}" for name, entry in entries.items())
