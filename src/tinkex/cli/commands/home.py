"""`tinkex home`: what takes room in your own server's home, and how to get it back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinkex.cli.commands.keys import HOME
from tinkex.cli.errors import CliError
from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import command
from tinkex.cli.outside.server_floor import default_home, require_server
from tinkex.cli.terminal.formats import format_size
from tinkex.cli.terminal.output import LineOutput, TableOutput

if TYPE_CHECKING:
    from tinkex.server.hosting.home_moving import Step
    from tinkex.server.sampling.unnamed_weights import Freed
    from tinkex.server.storage.home_usage import HomeUsage


class Usage(TableOutput):
    """What takes room, by what it is for."""

    def __init__(self, usage: HomeUsage) -> None:
        self.usage = usage

    def to_dict(self) -> dict[str, Any]:
        usage = self.usage
        return {
            "home": str(usage.root),
            "size_bytes": usage.size_bytes,
            "free_bytes": usage.free_bytes,
            "parts": [
                {"kind": part.kind, "count": part.count, "size_bytes": part.size_bytes}
                for part in usage.parts
            ],
        }

    def title(self) -> str:
        taken, free = format_size(self.usage.size_bytes), format_size(self.usage.free_bytes)
        return f"{self.usage.root} takes {taken}; the disk has {free} left"

    def columns(self) -> list[str]:
        return ["What", "Count", "Size"]

    def rows(self) -> list[list[str]]:
        return [
            [part.kind, str(part.count), format_size(part.size_bytes)] for part in self.usage.parts
        ]


class Cleaned(LineOutput):
    """What was let go, or would be."""

    def __init__(self, freed: Freed, dry_run: bool) -> None:
        self.freed = freed
        self.dry_run = dry_run

    def to_dict(self) -> dict[str, Any]:
        freed = self.freed
        return {
            "samplers": freed.samplers,
            "size_bytes": freed.size_bytes,
            "dry_run": self.dry_run,
        }

    def lines(self) -> list[str]:
        count = self.freed.samplers
        what = f"{count} sampler{'' if count == 1 else 's'} without a name"
        verb = "Would let go of" if self.dry_run else "Let go of"
        return [f"{verb} {what}, {format_size(self.freed.size_bytes)}"]


@command
@HOME
def du(_context: CommandContext, home: Path | None) -> Usage:
    """Show what takes room in a home. A server that runs there is not disturbed.

    Example: tinkex home du --home /srv/tinkex
    """
    require_server()
    from tinkex.server.storage.home_rows import WrongRows
    from tinkex.server.storage.home_usage import measure

    try:
        return Usage(measure(existing(home)))
    except WrongRows as error:
        raise CliError(str(error)) from error


@command
@HOME
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
def gc(_context: CommandContext, home: Path | None, dry_run: bool) -> Cleaned:
    """Let go of what a home need not keep: weights saved for a sampler without a name.

    Checkpoints with a name stay, and so do samplers that were used in the last ten minutes and the
    newest of every live session. A server that runs there does the work.

    Example: tinkex home gc --dry-run
    """
    require_server()
    from tinkex.server.hosting.home_cleaning import clean
    from tinkex.server.storage.database.transactions import DatabaseError
    from tinkex.server.storage.home import HomeTaken
    from tinkex.server.storage.home_rows import WrongRows

    try:
        return Cleaned(clean(existing(home), dry_run=dry_run), dry_run)
    except (DatabaseError, HomeTaken, WrongRows, OSError) as error:
        raise CliError(f"The home could not be cleaned: {error}") from error


class Migrated(LineOutput):
    """What was moved, and checked on both sides."""

    def __init__(self, steps: list[Step]) -> None:
        self.steps = steps

    def to_dict(self) -> dict[str, Any]:
        return {
            "moved": [
                {"what": step.what, "to": step.to, "count": step.count, "checked": step.checked}
                for step in self.steps
            ]
        }

    def lines(self) -> list[str]:
        return [
            *(
                f"Moved {step.count} {step.what} to {step.to}; {step.checked}"
                for step in self.steps
            ),
            "Next: tinkex serve",
        ]


@command
@HOME
@click.option("--objects", metavar="URL", help="For the files, such as s3://BUCKET/PREFIX.")
@click.option("--to", "database", metavar="URL", help="For the rows: postgresql://….")
def migrate(
    context: CommandContext, home: Path | None, objects: str | None, database: str | None
) -> Migrated:
    """Move a home to a team's stores: files into an object store, rows to PostgreSQL, or both.

    Stop the server first. What is stopped half-way goes on from there when it is started again;
    everything is read back and compared before the home lets go of it. The rows' file stays as
    tinkex.db.moved.

    Example: tinkex home migrate --objects s3://my-bucket/tinkex
    """
    if objects is None and database is None:
        raise click.UsageError("Say where to: --objects URL, --to URL, or both.")
    require_server()
    from tinkex.server.hosting.home_moving import CannotMove, move
    from tinkex.server.storage.home import HomeTaken
    from tinkex.server.storage.home_rows import WrongRows

    try:
        return Migrated(move(existing(home), objects, database, context.narrate))
    except (CannotMove, HomeTaken, WrongRows, OSError) as error:
        raise CliError(f"The home could not be moved: {error}") from error


START_OR_NAME = "Next: tinkex serve, or --home FOLDER for a server that has another home"
"""What to type where no server runs."""


def existing(home: Path | None) -> Path:
    """The home that is meant; looking must not make one."""
    root = (home or default_home()).expanduser().absolute()
    if not (root / "lock").is_file():
        raise CliError(f"{root} is no home of a server yet", next_step=START_OR_NAME)
    return root
