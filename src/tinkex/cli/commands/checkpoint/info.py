"""`tinkex checkpoint info`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from tinkex.cli.commands.run.info import known, lora_text
from tinkex.cli.errors import CliError
from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import command
from tinkex.cli.listings.checkpoint_path import check_path
from tinkex.cli.listings.naming import find_checkpoint
from tinkex.cli.terminal.formats import format_bool, format_size, format_timestamp
from tinkex.cli.terminal.output import PropertyOutput

if TYPE_CHECKING:
    from tinkex.types import Checkpoint, TrainingRun


class CheckpointInfo(PropertyOutput):
    """One checkpoint and what its run says about it."""

    def __init__(self, checkpoint: Checkpoint, run: TrainingRun, now: datetime) -> None:
        self.checkpoint = checkpoint
        self.run = run
        self.now = now

    def to_dict(self) -> dict[str, Any]:
        lora = {"is_lora": self.run.is_lora, "lora_rank": self.run.lora_rank}
        return {**checkpoint_facts(self.checkpoint), **lora}

    def title(self) -> str:
        return f"Checkpoint: {self.checkpoint.checkpoint_id}"

    def rows(self) -> list[list[str]]:
        item = self.checkpoint
        size = [] if item.size_bytes is None else [["Size", format_size(item.size_bytes)]]
        expires = format_timestamp(item.expires_at, self.now) if item.expires_at else "Never"
        return [
            ["Checkpoint ID", item.checkpoint_id],
            ["Type", item.checkpoint_type],
            ["Tinker Path", item.tinker_path],
            *known("Base Model", item.base_model),
            *known("Step", item.step),
            *size,
            ["Public", format_bool(item.public)],
            ["Created", format_timestamp(item.time, self.now)],
            ["Expires", expires],
            ["Training Run ID", self.run.training_run_id],
            ["LoRA", lora_text(self.run)],
        ]


def checkpoint_facts(item: Checkpoint) -> dict[str, Any]:
    """A checkpoint for programs: the official keys, then what our server adds, if it did."""
    if item.base_model is None:
        return item.model_dump()
    return {**item.model_dump(), "base_model": item.base_model, "step": item.step}


@command
@click.argument("checkpoint_path")
def info(context: CommandContext, checkpoint_path: str) -> CheckpointInfo:
    """Show one checkpoint.

    CHECKPOINT_PATH looks like tinker://RUN_ID/weights/NAME; one that others have published works
    too. RUN_ID may be the start of an id, or a run's name.

    Example: tinkex checkpoint info tinker://varn/weights/step-100
    """
    checkpoint_path = find_checkpoint(context, checkpoint_path)
    run_id = check_path(checkpoint_path).training_run_id
    rest = context.rest
    listed = rest.list_checkpoints(run_id)
    run = rest.get_training_run(run_id, access_scope="accessible")
    for checkpoint in context.wait(listed).checkpoints:
        if checkpoint.tinker_path == checkpoint_path:
            return CheckpointInfo(checkpoint, context.wait(run), context.now)
    raise CliError(
        f"Checkpoint not found: {checkpoint_path}",
        next_step=f"Next: tinkex checkpoint list --run-id {run_id}",
    )
