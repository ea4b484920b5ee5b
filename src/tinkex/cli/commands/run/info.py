"""`tinkex run info`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import command
from tinkex.cli.listings.naming import find_run
from tinkex.cli.terminal.formats import format_timestamp
from tinkex.cli.terminal.output import PropertyOutput

if TYPE_CHECKING:
    from tinkex.types import Checkpoint, TrainingRun


class RunInfo(PropertyOutput):
    """One training run."""

    def __init__(self, run: TrainingRun, now: datetime) -> None:
        self.run = run
        self.now = now

    def to_dict(self) -> dict[str, Any]:
        return run_facts(self.run)

    def title(self) -> str:
        return f"Training Run: {self.run.training_run_id}"

    def rows(self) -> list[list[str]]:
        run = self.run
        return [
            ["Run ID", run.training_run_id],
            *known("Name", run.name),
            ["Base Model", run.base_model],
            ["Owner", run.model_owner],
            ["LoRA", lora_text(run)],
            *known("Created", run.created_at and format_timestamp(run.created_at, self.now)),
            ["Last Update", format_timestamp(run.last_request_time, self.now)],
            ["Status", status_text(run)],
            *known("Step", run.step),
            *known("Last Loss", run.last_loss and f"{loss_text(run)} per token"),
            *known("Tokens", run.tokens and f"{run.tokens:,}"),
            *known("Note", run.note),
            *self._checkpoint("Last Training Checkpoint", run.last_checkpoint),
            *self._checkpoint("Last Sampler Checkpoint", run.last_sampler_checkpoint),
            *self._gap(),
            *self._metadata(),
        ]

    def _checkpoint(self, label: str, item: Checkpoint | None) -> list[list[str]]:
        if item is None:
            return []
        return [
            [label, item.checkpoint_id],
            ["  - Time", format_timestamp(item.time, self.now)],
            ["  - Path", item.tinker_path],
        ]

    def _gap(self) -> list[list[str]]:
        gap = self.run.sampler_gap
        if gap is None:
            return []
        said = f"mean {gap.mean:.1e}, max {gap.max:.1e} nats over {gap.tokens} tokens"
        return [["Trainer-Sampler Gap", said]]

    def _metadata(self) -> list[list[str]]:
        if not self.run.user_metadata:
            return []
        pairs = [[f"  - {name}", value] for name, value in self.run.user_metadata.items()]
        return [["Metadata", ""], *pairs]


def lora_text(run: TrainingRun) -> str:
    """Whether a run trains an adapter, and of which rank."""
    if not run.is_lora:
        return "No"
    return f"Yes (Rank {run.lora_rank})" if run.lora_rank else "Yes"


def status_text(run: TrainingRun) -> str:
    """`Live`, `Stopping` or `Ended` where the server says so, otherwise `OK`; `Failed` for a run
    that can no longer be used."""
    if run.corrupted:
        return "Failed"
    return run.state.capitalize() if run.state else "OK"


def loss_text(run: TrainingRun) -> str:
    """The newest loss per token, in four digits."""
    return "N/A" if run.last_loss is None else f"{run.last_loss:.4g}"


def known(label: str, value: object) -> list[list[str]]:
    """A row of a table, unless there is nothing to say."""
    return [] if value is None else [[label, str(value)]]


ADDED = ("name", "note", "created_at", "state", "step", "last_loss", "tokens")


def run_facts(run: TrainingRun) -> dict[str, Any]:
    """A run for programs: the official keys, then what our server adds, if it did."""
    added = ADDED if run.state is not None else ()
    return {**run.model_dump(), **{name: getattr(run, name) for name in added}}


SCOPE = click.option(
    "--access-scope",
    type=click.Choice(["owned", "accessible"]),
    default="owned",
    show_default=True,
    help="Your own runs only, or all you may read.",
)


@command
@click.argument("run_id")
@SCOPE
def info(context: CommandContext, run_id: str, access_scope: str) -> RunInfo:
    """Show one training run: its model, its state and its last checkpoints.

    RUN_ID may be the start of an id, as long as only one run starts so, or a run's name.

    Example: tinkex run info varn
    """
    run_id = find_run(context, run_id)
    run = context.rest.get_training_run(run_id, access_scope=access_scope)
    return RunInfo(context.wait(run), context.now)
