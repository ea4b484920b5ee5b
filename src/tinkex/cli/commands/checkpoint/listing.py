"""`tinkex checkpoint list`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from tinkex.cli.commands.checkpoint.info import checkpoint_facts
from tinkex.cli.commands.run.listing import short_model
from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import command
from tinkex.cli.listings.naming import find_run
from tinkex.cli.listings.paging import Listing, Pages
from tinkex.cli.terminal.formats import format_bool, format_optional, format_size, format_timestamp
from tinkex.cli.terminal.output import TableOutput

if TYPE_CHECKING:
    from tinkex.types import Checkpoint, CheckpointsListResponse

PAGE_SIZE = 1000
LEAST_WANTED = ("Type", "Public", "Checkpoint ID")  # the path says most of these too


class CheckpointList(TableOutput):
    """Checkpoints of one run, or of all."""

    def __init__(self, listing: Listing[Checkpoint], run_id: str | None, now: datetime) -> None:
        self.listing = listing
        self.run_id = run_id
        self.now = now

    def to_dict(self) -> dict[str, Any]:
        checkpoints = [checkpoint_facts(item) for item in self.listing.items]
        owner = {} if self.run_id is None else {"run_id": self.run_id}
        return {**owner, "checkpoints": checkpoints}

    def title(self) -> str:
        return self.listing.title("checkpoint", f" for run {self.run_id}" if self.run_id else "")

    @property
    def _described(self) -> bool:
        """Whether the server says which model and step its checkpoints are of."""
        return any(item.base_model for item in self.listing.items)

    def columns(self) -> list[str]:
        added = ["Model", "Step"] if self._described else []
        return ["Checkpoint ID", "Type", *added, "Size", "Public", "Created", "Expires", "Path"]

    def rows(self) -> list[list[str]]:
        return [self._row(item) for item in self.listing.items]

    def forms(self) -> Iterator[tuple[list[str], list[list[str]]]]:
        columns, rows = self.columns(), self.rows()
        yield columns, rows
        for name in LEAST_WANTED:
            place = columns.index(name)
            columns = columns[:place] + columns[place + 1 :]
            rows = [row[:place] + row[place + 1 :] for row in rows]
            yield columns, rows

    def _row(self, item: Checkpoint) -> list[str]:
        expires = format_timestamp(item.expires_at, self.now) if item.expires_at else "Never"
        added = [short_model(item.base_model or "N/A"), format_optional(item.step)]
        return [
            item.checkpoint_id,
            item.checkpoint_type,
            *(added if self._described else []),
            format_optional(item.size_bytes, format_size),
            format_bool(item.public),
            format_timestamp(item.time, self.now),
            expires,
            item.tinker_path,
        ]


@command
@click.option("--run-id", metavar="RUN_ID", help="Only the checkpoints of this training run.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="The most checkpoints to show; 0 shows all. Ignored with --run-id.",
)
@click.option(
    "--offset",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="How many to skip. Ignored with --run-id.",
)
def list_(context: CommandContext, run_id: str | None, limit: int, offset: int) -> CheckpointList:
    """List checkpoints, newest first: those of one run with --run-id, otherwise all of yours.

    Example: tinkex checkpoint list --run-id varn
    """
    if run_id is not None:
        run_id = find_run(context, run_id)
        found = context.wait(context.rest.list_checkpoints(run_id)).checkpoints
        return CheckpointList(Listing(found, more=0), run_id, context.now)
    rest = context.rest
    pages: Pages[Checkpoint] = Pages(
        "checkpoint",
        PAGE_SIZE,
        lambda limit, offset: rest.list_user_checkpoints(limit=limit, offset=offset),
        _read_page,
    )
    found = pages.fetch(context, limit, offset)
    context.remember("checkpoints", [item.tinker_path for item in found.items])
    return CheckpointList(found, None, context.now)


def _read_page(page: CheckpointsListResponse) -> tuple[list[Checkpoint], int]:
    return list(page.checkpoints), page.cursor.total_count if page.cursor else len(page.checkpoints)
