"""`tinkex checkpoint create`, also reached as `tinkex checkpoint --base-model ...`."""

from __future__ import annotations

import json
from datetime import UTC
from pathlib import Path
from typing import Any

import click

from tinkex.cli.errors import CliError, explain_work
from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import command
from tinkex.cli.listings.naming import find_checkpoint
from tinkex.cli.terminal.output import LineOutput
from tinkex.cli.whole_file import write_whole
from tinkex.types.tinker_path import SCHEME

_TIMED_OUT = "Timed out while awaiting checkpoint save"


class CheckpointCreated(LineOutput):
    """A saved checkpoint; its description lies in a file."""

    def __init__(self, metadata: dict[str, Any], output: Path, flags: str) -> None:
        self.metadata = metadata
        self.output = output
        self.flags = flags

    def to_dict(self) -> dict[str, Any]:
        return self.metadata

    def lines(self) -> list[str]:
        path = self.metadata["weights_path"]
        words = ("tinkex run sample", self.flags, f"--model-path {path}", '--prompt "Hello"')
        return [
            f"Checkpoint saved to {self.output}",
            f"Weights: {path}",
            f"Next: {' '.join(filter(None, words))}",
        ]


@command
@click.option("--base-model", metavar="MODEL", help="The base model to adapt.")
@click.option("--model-path", metavar="PATH", help="Saved weights to start from: tinker://...")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to describe the checkpoint in (required).",
)
@click.option("--name", help="The checkpoint's name (default: after the base model).")
@click.option("--rank", type=click.IntRange(min=1), default=32, show_default=True)
@click.option("--seed", type=int, help="The seed of the adapter's first weights.")
@click.option("--train-mlp/--no-train-mlp", default=True, show_default=True)
@click.option("--train-attn/--no-train-attn", default=True, show_default=True)
@click.option("--train-unembed/--no-train-unembed", default=True, show_default=True)
def create(
    context: CommandContext,
    base_model: str | None,
    model_path: str | None,
    output: Path | None,
    name: str | None,
    **lora: Any,
) -> CheckpointCreated:
    """Create a training run and save its weights for sampling.

    Nothing is downloaded: a small JSON file says where the weights are. With --model-path the run
    starts from saved weights, and keeps their rank and trained parts.

    Example: tinkex checkpoint create --base-model Qwen/Qwen3-8B -o run.json
    """
    if output is None:
        raise click.UsageError("--output is required for checkpoint command")
    if base_model is None and model_path is None:
        raise click.UsageError("Missing --base-model (or --model-path)")
    if not any(lora[part] for part in ("train_mlp", "train_attn", "train_unembed")):
        raise click.UsageError(
            "At least one of --train-mlp, --train-attn, --train-unembed is "
            "needed: nothing would be trained."
        )
    if model_path is not None and not model_path.startswith(SCHEME):
        raise CliError(
            f"--model-path must be a tinker:// path, not {model_path!r}",
            next_step="Next: tinkex checkpoint list",
            exit_code=2,
        )
    try:
        metadata = _create(context, base_model, model_path, name, lora)
    except Exception as error:
        raise explain_work(error, "Checkpoint", _TIMED_OUT) from error
    return _describe(metadata, output, context.connection.flags())


def _create(
    context: CommandContext,
    base_model: str | None,
    model_path: str | None,
    name: str | None,
    lora: dict[str, Any],
) -> dict[str, Any]:
    context.narrate_start()
    context.narrate("Starting a session...")
    service = context.service
    context.narrate("Creating the training client...")
    if model_path is not None:
        path = find_checkpoint(context, model_path)
        client = context.within(
            lambda: service.create_training_client_from_state(path, base_model=base_model)
        )
    else:
        client = context.within(lambda: service.create_lora_training_client(base_model, **lora))
    if base_model is None:
        base_model = context.within(client.get_info).model_data.model_name or model_path
    context.narrate("Saving the weights...")
    saved = context.wait(client.save_weights_for_sampler(name or _name(str(base_model))))
    return {
        "base_model": base_model,
        "model_id": client.model_id or base_model,
        "weights_path": saved.path,
        "saved_at": context.now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "response": saved.model_dump(),
    }


def _name(base_model: str) -> str:
    return "checkpoint-" + base_model.lower().replace("/", "-").replace(":", "-")


def _describe(metadata: dict[str, Any], output: Path, flags: str) -> CheckpointCreated:
    try:
        write_whole(output, json.dumps(metadata, indent=2, default=str) + "\n")
    except OSError as error:
        raise CliError(
            "Failed to write checkpoint metadata",
            f"Details: {error}",
            f"The weights are saved: {metadata['weights_path']}",
        ) from error
    return CheckpointCreated(metadata, output, flags)
