"""`tinkex version`, when the quick path cannot answer (its help, or a mistake in its options)."""

from __future__ import annotations

from typing import Any

import click

from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import command
from tinkex.cli.line.version import version_facts, version_text
from tinkex.cli.terminal.output import LineOutput


class Version(LineOutput):
    """Which tinkex this is."""

    def __init__(self, deps: bool) -> None:
        self.deps = deps

    def to_dict(self) -> dict[str, Any]:
        return version_facts(self.deps)

    def lines(self) -> list[str]:
        return version_text(self.deps).splitlines()


@command
@click.option("--deps", is_flag=True, help="Also show the versions of what tinkex runs on.")
def version(_context: CommandContext, deps: bool) -> Version:
    """Show the version, and the commit where it is known.

    Example: tinkex version --deps
    """
    return Version(deps)
