"""`tinkex run list`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from tinkex.cli.commands.run.info import SCOPE, loss_text, run_facts, status_text
from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import command
from tinkex.cli.listings.naming import short_id
from tinkex.cli.listings.paging import Listing, Pages
from tinkex.cli.terminal.formats import format_count, format_optional, format_timestamp
from tinkex.cli.terminal.output import TableOutput

if TYPE_CHECKING:
    from tinkex.types import TrainingRun, TrainingRunsResponse

PAGE_SIZE = 100


def _lora(run: TrainingRun, _now: datetime) -> str:
    if not run.is_lora:
        return "No"
    return f"Rank {run.lora_rank}" if run.lora_rank else "Yes"


def _checkpoint(run: TrainingRun, _now: datetime) -> str:
    return run.last_checkpoint.checkpoint_id if run.last_checkpoint else "None"


def _checkpoint_time(run: TrainingRun, now: datetime) -> str:
    return format_timestamp(run.last_checkpoint.time if run.last_checkpoint else None, now)


COLUMNS: dict[str, tuple[str, Callable[[Any, datetime], str]]] = {
    "id": ("Run ID", lambda run, _: run.training_run_id),
    "name": ("Name", lambda run, _: run.name or ""),
    "model": ("Base Model", lambda run, _: run.base_model),
    "owner": ("Owner", lambda run, _: run.model_owner),
    "lora": ("LoRA", _lora),
    "step": ("Step", lambda run, _: format_optional(run.step)),
    "loss": ("Loss", lambda run, _: loss_text(run)),
    "tokens": ("Tokens", lambda run, _: format_optional(run.tokens, format_count)),
    "created": ("Created", lambda run, now: format_timestamp(run.created_at, now)),
    "updated": ("Last Update", lambda run, now: format_timestamp(run.last_request_time, now)),
    "status": ("Status", lambda run, _: status_text(run)),
    "checkpoint": ("Last Checkpoint", _checkpoint),
    "checkpoint_time": ("Checkpoint Time", _checkpoint_time),
}
DEFAULT_COLUMNS = "id,name,model,owner,lora,step,loss,tokens,created,updated,status"
ADDED_COLUMNS = ("step", "loss", "tokens", "created")
LEAST_WANTED = (
    "owner",
    "created",
    "lora",
    "tokens",
    "model",
    "loss",
)  # first to go for want of room


class RunList(TableOutput):
    """Training runs, in the columns the user chose."""

    def __init__(self, listing: Listing[TrainingRun], chosen: list[str], now: datetime) -> None:
        self.listing = listing
        self.chosen = chosen
        self.now = now

    def to_dict(self) -> dict[str, Any]:
        return {"runs": [run_facts(run) for run in self.listing.items]}

    def title(self) -> str:
        return self.listing.title("training run")

    def columns(self) -> list[str]:
        return self._headings(self.chosen)

    def rows(self) -> list[list[str]]:
        return self._cells(self.chosen)

    def forms(self) -> Iterator[tuple[list[str], list[list[str]]]]:
        """Ids and models get shorter before columns go."""
        yield self.columns(), self.rows()
        for kept in _ever_fewer(list(self.chosen)):
            yield self._headings(kept), self._shortened(kept)

    def _headings(self, names: list[str]) -> list[str]:
        return [COLUMNS[name][0] for name in names]

    def _cells(self, names: list[str]) -> list[list[str]]:
        show = [COLUMNS[name][1] for name in names]
        return [[cell(run, self.now) for cell in show] for run in self.listing.items]

    def _shortened(self, names: list[str]) -> list[list[str]]:
        shorter = {"id": short_id, "model": short_model}
        return [
            [shorter.get(name, str)(cell) for name, cell in zip(names, row, strict=True)]
            for row in self._cells(names)
        ]


def _ever_fewer(chosen: list[str]) -> Iterator[list[str]]:
    """Columns, the least wanted gone first; where a wide one goes, narrow ones that had gone before
    it may come back."""
    yield chosen
    gone: list[str] = []
    for name in LEAST_WANTED:
        if name in chosen and len(chosen) - len(gone) > 1:
            for first in range(len(gone) + 1):
                left_out = {name, *gone[:first]}
                yield [one for one in chosen if one not in left_out]
            gone.append(name)


def short_model(name: str) -> str:
    """A model's name without its organization."""
    return name.rstrip("/").rpartition("/")[2]


@command
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="The most runs to show; 0 shows all.",
)
@click.option(
    "--offset", type=click.IntRange(min=0), default=0, show_default=True, help="How many to skip."
)
@click.option(
    "-c",
    "--columns",
    help=f"What to show, with commas between: {', '.join(COLUMNS)}.",
)
@SCOPE
def list_(
    context: CommandContext, limit: int, offset: int, columns: str | None, access_scope: str
) -> RunList:
    """List training runs, the most recently used first.

    A narrow terminal gets short ids and fewer columns; commands take the short ids too.

    Example: tinkex run list --limit 5 -c id,name,step,loss
    """
    chosen = _chosen(columns or DEFAULT_COLUMNS)
    rest = context.rest
    pages: Pages[TrainingRun] = Pages(
        "training run",
        PAGE_SIZE,
        lambda limit, offset: rest.list_training_runs(
            limit=limit, offset=offset, access_scope=access_scope
        ),
        _read_page,
    )
    found = pages.fetch(context, limit, offset)
    context.remember("runs", [run.training_run_id for run in found.items])
    if columns is None:
        chosen = [name for name in chosen if _is_told(name, found.items)]
    return RunList(found, chosen, context.now)


def _is_told(name: str, runs: list[TrainingRun]) -> bool:
    """Whether a column has anything to say: the hosted service leaves ours empty."""
    if name == "name":
        return any(run.name for run in runs)
    return name not in ADDED_COLUMNS or any(run.state for run in runs)


def _read_page(page: TrainingRunsResponse) -> tuple[list[TrainingRun], int]:
    return list(page.training_runs), page.cursor.total_count


def _chosen(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        raise click.BadParameter(
            f"Unknown column(s): {', '.join(unknown)}. Available: {', '.join(COLUMNS)}",
            param_hint="'--columns'",
        )
    return names
