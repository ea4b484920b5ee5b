"""`tinkex run info`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from tinkex.cli.context import CommandContext
from tinkex.cli.formats import format_timestamp
from tinkex.cli.options import command
from tinkex.cli.output import PropertyOutput

if TYPE_CHECKING:
    from tinkex.types import Checkpoint, TrainingRun


class RunInfo(PropertyOutput):
    """One training run."""

    def __init__(self, run: TrainingRun, now: datetime) -> None:
        self.run = run
        self.now = now

    def to_dict(self) -> dict[str, Any]:
        return self.run.model_dump()

    def title(self) -> str:
        return f"Training Run: {self.run.training_run_id}"

    def rows(self) -> list[list[str]]:
        run = self.run
        return [
            ["Run ID", run.training_run_id],
            ["Base Model", run.base_model],
            ["Owner", run.model_owner],
            ["LoRA", lora_text(run)],
            ["Last Update", format_timestamp(run.last_request_time, self.now)],
            ["Status", status_text(run)],
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
    """`OK`, or `Failed` for a run that can no longer be used."""
    return "Failed" if run.corrupted else "OK"


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
    """Show one training run: its model, its state and its last checkpoints."""
    run = context.rest.get_training_run(run_id, access_scope=access_scope)
    return RunInfo(context.wait(run), context.now)
