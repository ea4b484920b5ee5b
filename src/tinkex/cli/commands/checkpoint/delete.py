"""`tinkex checkpoint delete`."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import click

from tinkex.cli.commands.checkpoint.selection import Selection
from tinkex.cli.commands.checkpoint.sharing import Cancelled
from tinkex.cli.errors import CliError
from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import command
from tinkex.cli.listings.checkpoint_path import check_path
from tinkex.cli.listings.naming import find_checkpoint, find_run
from tinkex.cli.reasons import reason
from tinkex.cli.terminal.formats import format_size, format_timestamp
from tinkex.cli.terminal.output import LineOutput, Output

if TYPE_CHECKING:
    from tinkex.types import Checkpoint

_AT_ONCE = 32


class Deleted(LineOutput):
    """How many checkpoints are gone, and which refused to go."""

    def __init__(self, deleted: int, failed: list[tuple[str, str]]) -> None:
        self.deleted = deleted
        self.failed = failed
        self.exit_code = 1 if failed else 0

    def to_dict(self) -> dict[str, Any]:
        failed = [{"tinker_path": path, "error": error} for path, error in self.failed]
        return {"deleted_count": self.deleted, "failed": failed}

    def lines(self) -> list[str]:
        lines = [f"Deleted {_count(self.deleted)}"]
        if self.failed:
            lines.append(f"Failed to delete {_count(len(self.failed))}:")
            lines += [f"  - {path}: {error}" for path, error in self.failed]
        return lines


class NothingMatched(LineOutput):
    """No checkpoint of the run fits the filters."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id

    def to_dict(self) -> dict[str, Any]:
        return {"deleted_count": 0, "failed": []}

    def lines(self) -> list[str]:
        return [f"No checkpoints found for run {self.run_id} matching filters"]


@command
@click.argument("checkpoint_paths", nargs=-1)
@click.option("--run-id", metavar="RUN_ID", help="Delete checkpoints of this training run.")
@click.option(
    "--type", "kind", help="With --run-id: only weights, sampler_weights or external_weights."
)
@click.option("--before", metavar="DATE", help="With --run-id: only those made before (ISO 8601).")
@click.option("--after", metavar="DATE", help="With --run-id: only those made after (ISO 8601).")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def delete(
    context: CommandContext,
    checkpoint_paths: tuple[str, ...],
    run_id: str | None,
    kind: str | None,
    before: str | None,
    after: str | None,
    yes: bool,
) -> Output:
    """Delete checkpoints, permanently.

    Name them by their paths, or choose those of one run with --run-id and filters. What will be
    deleted is shown and confirmed first; --yes skips the question.

    Example: tinkex checkpoint delete tinker://varn/weights/step-100
    """
    selection = Selection.read(checkpoint_paths, run_id, kind, before, after)
    _refuse_to_guess(context, yes)
    if run_id is not None:
        run_id = find_run(context, run_id)
        found = context.wait(context.rest.list_checkpoints(run_id)).checkpoints
        listed = [item for item in found if selection.matches(item)]
        if not listed:
            return NothingMatched(run_id)
        paths = [item.tinker_path for item in listed]
    else:
        for path in checkpoint_paths:
            check_path(path)
        paths = [find_checkpoint(context, path) for path in checkpoint_paths]
        listed = [] if yes else _described(context, paths)
    if not yes and not _confirmed(context, listed):
        return Cancelled("Deletion cancelled.")
    return _delete_all(context, paths)


def _described(context: CommandContext, paths: list[str]) -> list[Checkpoint]:
    """What the server knows of the checkpoints; one that does not exist is said at once."""
    known: dict[str, Checkpoint] = {}
    for run_id in dict.fromkeys(check_path(path).training_run_id for path in paths):
        try:
            found = context.wait(context.rest.list_checkpoints(run_id)).checkpoints
        except Exception as error:
            if getattr(error, "status_code", None) != 404:
                raise
            found = []
        known.update({item.tinker_path: item for item in found})
    missing = [path for path in paths if path not in known]
    if missing:
        more = "".join(f"\n  {path}" for path in missing[1:])
        raise CliError(
            f"Checkpoint not found: {missing[0]}{more}",
            "Nothing was deleted.",
            "Next: tinkex checkpoint list",
        )
    return [known[path] for path in paths]


def _refuse_to_guess(context: CommandContext, yes: bool) -> None:
    if not yes and not context.can_ask:
        raise click.UsageError("Nobody can be asked here: add --yes to delete without asking.")


def _confirmed(context: CommandContext, listed: list[Checkpoint]) -> bool:
    context.note(f"Will delete {_count(len(listed))}:")
    for item in listed:
        context.note(f"  - {item.tinker_path}\n    {_facts(item, context)}")
    total = sum(item.size_bytes or 0 for item in listed)
    context.note(f"Total size: {format_size(total)}")
    context.note("\nWARNING: This action is permanent and cannot be undone.\n")
    return context.confirm(f"Are you sure you want to delete {_count(len(listed))}?")


def _facts(item: Checkpoint, context: CommandContext) -> str:
    size = "size unknown" if item.size_bytes is None else format_size(item.size_bytes)
    created = format_timestamp(item.time, context.now)
    shared = "public: others use it" if item.public else "private"
    ends = f"expires {format_timestamp(item.expires_at, context.now)}" if item.expires_at else ""
    return f"{item.checkpoint_type}, {size}, created {created}, {shared}, {ends or 'never expires'}"


def _delete_all(context: CommandContext, paths: list[str]) -> Deleted:
    rest = context.rest
    starting, running = deque(paths), deque[tuple[str, Any]]()
    failed: list[tuple[str, str]] = []
    with context.bar("Deleting checkpoints", len(paths), "checkpoints") as bar:
        while starting or running:
            while starting and len(running) < _AT_ONCE:
                path = starting.popleft()
                running.append((path, rest.delete_checkpoint_from_tinker_path(path)))
            path, future = running.popleft()
            try:
                context.wait(future)
            except Exception as error:
                failed.append((path, _reason(error)))
            bar.advance(1)
    return Deleted(len(paths) - len(failed), failed)


def _reason(error: Exception) -> str:
    """One line; each failure belongs to its own path and does not stop the others."""
    return reason(error)


def _count(number: int) -> str:
    return f"{number} checkpoint{'' if number == 1 else 's'}"
