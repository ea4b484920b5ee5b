"""`tinkex checkpoint export`: a checkpoint in the layout that another library reads."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import click

from tinkex.cli.commands.checkpoint.fetch import fetch_checkpoint
from tinkex.cli.errors import CliError
from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import command
from tinkex.cli.listings.naming import find_checkpoint
from tinkex.cli.outside.exports import export_archive
from tinkex.cli.outside.server_floor import is_ours
from tinkex.cli.terminal.formats import format_size
from tinkex.cli.terminal.output import PropertyOutput
from tinkex.cli.transfer.staging import Staging

_READERS = {
    "peft": 'PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("{1}"), "{0}")',
    "peft-experts": "SGLang: --lora-paths NAME={0}; PEFT reads experts so of Qwen3-MoE alone",
    "vllm": "vllm serve {1} --enable-lora --max-lora-rank {2} --lora-modules NAME={0}",
    "merged": 'AutoModelForCausalLM.from_pretrained("{0}")',
}


class CheckpointExport(PropertyOutput):
    """Where a checkpoint's weights are now, and in which layout."""

    def __init__(self, path: str, layout: str, base: str, folder: Path, rank: int | None) -> None:
        self.path = path
        self.layout = layout
        self.base = base
        self.folder = folder
        self.rank = rank
        self.size = sum(file.stat().st_size for file in folder.iterdir())

    def to_dict(self) -> dict[str, Any]:
        return {
            "checkpoint_path": self.path,
            "layout": self.layout,
            "base_model": self.base,
            "destination": str(self.folder),
            "file_size_bytes": self.size,
            "largest_rank": self.rank,
        }

    def title(self) -> str:
        return f"Checkpoint Export: {self.path}"

    def rows(self) -> list[list[str]]:
        ranks = [] if self.rank is None else [["Largest Rank", str(self.rank)]]
        load = _READERS[self.layout].format(self.folder, self.base, self.rank)
        return [
            ["Checkpoint Path", self.path],
            ["Layout", self.layout],
            ["Base Model", self.base],
            *ranks,
            ["Total Size", format_size(self.size)],
            ["Written to", str(self.folder)],
            ["To load it", load],
        ]


@command
@click.argument("checkpoint_path")
@click.option(
    "--layout",
    type=click.Choice(sorted(_READERS)),
    required=True,
    help="The layout to write, by who reads it.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="The folder to write; it must not exist.",
)
@click.option(
    "--base",
    help="The base model's folder or name (default: the run's, where this machine has it).",
)
@click.option("--force", is_flag=True, help="Replace the folder if it exists.")
def export(
    context: CommandContext,
    checkpoint_path: str,
    layout: str,
    output: Path,
    base: str | None,
    force: bool,
) -> CheckpointExport:
    """Write a checkpoint in the layout that another library reads.

    CHECKPOINT_PATH is a tinker:// path or a folder that was downloaded before.

    \b
    peft          PEFT on transformers 5, all models
    peft-experts  one pair of factors an expert: PEFT on Qwen3-MoE, SGLang,
                  older transformers; not gpt-oss
    vllm          vLLM's --lora-modules, whatever it wants of the family
    merged        a whole model, without an adapter: transformers, vLLM, ...

    What checkpoint download writes is the hosted service's layout. For dense models PEFT and
    vLLM read it as it is; the cookbook's weight tools and SGLang read it for mixtures too.

    Example: tinkex checkpoint export tinker://varn/weights/a --layout vllm -o out
    """
    if output.exists() and not force:
        raise CliError(
            f"Target directory already exists: {output}",
            next_step="Replace it: add --force. Or choose another place: --output DIR",
        )
    with tempfile.TemporaryDirectory(prefix="tinkex-export-") as temporary:
        archive = _archive(context, checkpoint_path, Path(temporary, "archive"))
        name = _base_name(context, archive, checkpoint_path)
        wanted = base or name
        if wanted is None:
            raise CliError(
                "Which base model the checkpoint belongs to is not known",
                next_step="Name it: --base FOLDER",
            )
        context.narrate(f"Writing {output}...")
        ours = base is None and "://" in checkpoint_path and _asks_our_server(context)
        rank = _written(archive, wanted, layout, output, name, ours)
    return CheckpointExport(checkpoint_path, layout, wanted, output, rank)


def _archive(context: CommandContext, path: str, temporary: Path) -> Path:
    if "://" not in path and Path(path, "adapter_config.json").is_file():
        return Path(path)
    fetch_checkpoint(context, find_checkpoint(context, path), temporary)
    return temporary


def _base_name(context: CommandContext, archive: Path, path: str) -> str | None:
    """What the archive says, else what the server says of the run."""
    try:
        said = json.loads((archive / "adapter_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CliError("The checkpoint holds no adapter", f"Details: {error}") from error
    name = said.get("base_model_name_or_path") if isinstance(said, dict) else None
    if name or "://" not in path:
        return str(name) if name else None
    run = context.rest.get_training_run_by_tinker_path(
        find_checkpoint(context, path), access_scope="accessible"
    )
    return str(context.wait(run).base_model)


def _asks_our_server(context: CommandContext) -> bool:
    """Whether names of models are those of this machine's home. Elsewhere, or in a folder that
    was downloaded from anywhere, the same name may be another model's."""
    if context.is_embedded:
        return True
    address = context.deps.clients.address(context.connection)
    return address is not None and is_ours(address)


def _written(
    archive: Path, base: str, layout: str, output: Path, name: str | None, ours: bool
) -> int | None:
    """The folder appears in one step, complete."""
    staging = Staging(output.absolute())
    staging.discard()
    staging.open()
    try:
        rank = export_archive(archive, base, layout, staging.files, name, of_our_server=ours)
        staging.commit()
    except OSError as error:
        raise CliError(f"Failed to write {output}", f"Details: {error}") from error
    finally:
        staging.discard()
    return rank
