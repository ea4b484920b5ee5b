"""Writes docs/cli-reference.md from the commands themselves.

    python scripts/generate_cli_reference.py

A test fails when the page is not what this script would write.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli-reference.md"
WIDTH = 88
HEAD = """# Command reference

Written by `scripts/generate_cli_reference.py` from the commands; do not edit it. What the commands
print with `--json` is in [the JSON shapes](cli-json.md); what differs from the official command
line is in [migrating](migrating-cli.md).

Exit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted. Results go to stdout; progress,
questions and errors go to stderr.
"""


def page() -> str:
    """The whole page."""
    from tinkex.cli.line.help import group_help, root_help
    from tinkex.cli.line.table import COMMANDS, Group

    parts = [HEAD, _block("tinkex", root_help(), level=2)]
    for name, entry in COMMANDS.items():
        if isinstance(entry, Group):
            parts.append(_block(f"tinkex {name}", group_help(entry), level=2))
            parts += [
                _block(f"tinkex {name} {command.name}", _command_help((name, command.name)), 3)
                for command in entry.commands.values()
            ]
        else:
            parts.append(_block(f"tinkex {name}", _command_help((name,)), level=2))
    return "\n".join(parts)


def _command_help(words: tuple[str, ...]) -> str:
    """A command's help without the options of every command, which the root's help explains."""
    import click

    from tinkex.cli.line.invoke import load
    from tinkex.cli.line.options import SHARED_TITLE
    from tinkex.cli.line.table import COMMANDS, Group

    entry = COMMANDS[words[0]]
    leaf = load(entry.commands[words[1]] if isinstance(entry, Group) else entry)
    with click.Context(leaf, info_name=f"tinkex {' '.join(words)}", terminal_width=WIDTH) as ctx:
        return leaf.get_help(ctx).partition(f"\n{SHARED_TITLE}:")[0]


def _block(title: str, text: str, level: int) -> str:
    return f"{'#' * level} {title}\n\n```text\n{text.rstrip()}\n```\n"


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {os.path.relpath(PAGE)}", file=sys.stderr)


if __name__ == "__main__":
    main()
