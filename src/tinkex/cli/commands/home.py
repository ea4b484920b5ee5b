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
    from tinkex.server.sampling.unnamed_weights import Freed
    from tinkex.server.storage.home_usage import HomeUsage
    from tinkex.server.storage.objects.migration import Moved


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
    from tinkex.server.storage.home_usage import measure

    return Usage(measure(existing(home)))


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
    from tinkex.server.storage.home import HomeTaken

    try:
        return Cleaned(clean(existing(home), dry_run=dry_run), dry_run)
    except (HomeTaken, OSError) as error:
        raise CliError(f"The home could not be cleaned: {error}") from error


class Migrated(LineOutput):
    """What is in the object store now."""

    def __init__(self, moved: Moved) -> None:
        self.moved = moved

    def to_dict(self) -> dict[str, Any]:
        moved = self.moved
        return {
            "objects": moved.url,
            "moved": moved.moved,
            "present": moved.present,
            "size_bytes": moved.size_bytes,
        }

    def lines(self) -> list[str]:
        moved, size = self.moved, format_size(self.moved.size_bytes)
        return [
            f"Moved {moved.moved} to {moved.url}, {moved.present} were there; {size} checked",
            "Next: tinkex serve",
        ]


@command
@HOME
@click.option("--objects", required=True, metavar="URL", help="Such as s3://BUCKET/PREFIX.")
def migrate(context: CommandContext, home: Path | None, objects: str) -> Migrated:
    """Move a home's weights, snapshots and payloads from files into an object store.

    Stop the server first. What is stopped half-way goes on from there when it is started again;
    every byte is read back and compared before the home lets go of its files.

    Example: tinkex home migrate --objects s3://my-bucket/tinkex
    """
    require_server()
    from tinkex.server.storage.home import Home, HomeTaken
    from tinkex.server.storage.manifest import CorruptCheckpoint
    from tinkex.server.storage.objects.migration import Migration
    from tinkex.server.storage.objects.store import BadStore

    try:
        taken = Home(existing(home))
        try:
            return Migrated(Migration(taken, objects, context.narrate).run())
        finally:
            taken.release()
    except (HomeTaken, BadStore, OSError, CorruptCheckpoint) as error:
        raise CliError(f"The home could not be moved: {error}") from error


def existing(home: Path | None) -> Path:
    """The home that is meant; looking must not make one."""
    root = (home or default_home()).expanduser().absolute()
    if not (root / "lock").is_file():
        raise CliError(f"{root} is no home of a server yet", next_step="Next: tinkex serve")
    return root
