"""`tinkex checkpoint download`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tinkex.cli.commands.checkpoint.fetch import fetch_checkpoint
from tinkex.cli.errors import CliError
from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import command
from tinkex.cli.listings.checkpoint_path import folder_name
from tinkex.cli.listings.naming import find_checkpoint
from tinkex.cli.terminal.formats import format_size
from tinkex.cli.terminal.output import PropertyOutput


class CheckpointDownload(PropertyOutput):
    """Where a checkpoint's files are now."""

    def __init__(self, path: str, destination: Path, size: int) -> None:
        self.path = path
        self.destination = destination
        self.size = size

    def to_dict(self) -> dict[str, Any]:
        return {
            "checkpoint_path": self.path,
            "destination": str(self.destination),
            "file_size_bytes": self.size,
        }

    def title(self) -> str:
        return f"Checkpoint Download: {self.path}"

    def rows(self) -> list[list[str]]:
        return [
            ["Checkpoint Path", self.path],
            ["Total Size", format_size(self.size)],
            ["Downloaded to", str(self.destination)],
            ["To load it", f'PeftModel.from_pretrained(model, "{self.destination}")'],
        ]


@command
@click.argument("checkpoint_path")
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder to put the checkpoint's folder in (default: here).",
)
@click.option("--force", is_flag=True, help="Replace the folder if it exists.")
def download(
    context: CommandContext, checkpoint_path: str, output: Path | None, force: bool
) -> CheckpointDownload:
    """Download a checkpoint into a folder of its own.

    The folder is named after the checkpoint: tinker://RUN/weights/NAME goes to RUN_weights_NAME,
    with _ for every colon; PEFT loads it. Of a training checkpoint it holds the adapter, without
    the optimizer's state. A download that was cut continues when the same command runs again.

    Example: tinkex checkpoint download tinker://varn/weights/step-100
    """
    checkpoint_path = find_checkpoint(context, checkpoint_path)
    target = (output or Path.cwd()) / folder_name(checkpoint_path)
    if target.exists() and not force:
        raise CliError(
            f"Target directory already exists: {target}",
            next_step="Replace it: add --force. Or choose another place: --output DIR",
        )
    size = fetch_checkpoint(context, checkpoint_path, target)
    return CheckpointDownload(checkpoint_path, target, size)
