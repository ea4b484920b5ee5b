"""`tinkex checkpoint push-hf`: a checkpoint as a repository on the Hugging Face Hub."""

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
from tinkex.cli.listings.checkpoint_path import check_path
from tinkex.cli.listings.naming import find_checkpoint
from tinkex.cli.outside.model_card import card_path, write_card
from tinkex.cli.terminal.formats import format_bool
from tinkex.cli.terminal.output import PropertyOutput

_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_NEVER = ["checkpoint_complete"]


class CheckpointHubUpload(PropertyOutput):
    """Where a checkpoint is on the Hub."""

    def __init__(self, path: str, repo_id: str, revision: str | None, public: bool) -> None:
        self.path = path
        self.repo_id = repo_id
        self.revision = revision
        self.public = public

    def to_dict(self) -> dict[str, Any]:
        revision = {} if self.revision is None else {"revision": self.revision}
        return {
            "checkpoint_path": self.path,
            "repo_id": self.repo_id,
            **revision,
            "public": self.public,
        }

    def title(self) -> str:
        return f"Checkpoint Hub Upload: {self.path}"

    def rows(self) -> list[list[str]]:
        revision = [] if self.revision is None else [["Revision", self.revision]]
        return [
            ["Checkpoint Path", self.path],
            ["Repo ID", self.repo_id],
            *revision,
            ["Public", format_bool(self.public)],
        ]


@command
@click.argument("checkpoint_path")
@click.option("-r", "--repo", help="The repository (default: named after model and run).")
@click.option("--public", is_flag=True, help="Make a new repository public.")
@click.option("--revision", help="The branch to upload to.")
@click.option("--commit-message", help="The message of the commit.")
@click.option("--create-pr", is_flag=True, help="Open a pull request instead of committing.")
@click.option("--allow-pattern", multiple=True, help="Upload only these files; repeatable.")
@click.option("--ignore-pattern", multiple=True, help="Leave these files out; repeatable.")
@click.option("--no-model-card", is_flag=True, help="Write no README.md.")
def push(
    context: CommandContext,
    checkpoint_path: str,
    repo: str | None,
    public: bool,
    revision: str | None,
    no_model_card: bool,
    **upload: Any,
) -> CheckpointHubUpload:
    """Upload a checkpoint to the Hugging Face Hub as a PEFT adapter.

    Needs the huggingface_hub library and a login there (hf auth login).

    Example: tinkex checkpoint push-hf tinker://varn/weights/step-100 -r me/varn
    """
    checkpoint_path = find_checkpoint(context, checkpoint_path)
    parts = check_path(checkpoint_path)
    hub = context.deps.hub()
    hub.require_login()
    with tempfile.TemporaryDirectory(prefix="tinkex-push-") as temporary:
        folder = Path(temporary, "checkpoint")
        fetch_checkpoint(context, checkpoint_path, folder)
        base_model = _prepare_adapter(context, folder, checkpoint_path)
        if repo is None:
            repo = _repo_name(base_model, parts.training_run_id)
            revision = revision or _clean(f"{parts.kind}-{parts.name}")
        repo = hub.create(repo, private=not public)
        _refuse_foreign(hub, repo, revision, checkpoint_path)
        if not no_model_card and not card_path(folder).exists():
            write_card(folder, checkpoint_path, base_model)
        context.narrate(f"Uploading to {repo}...")
        hub.upload(repo, folder, revision=revision, **_patterns(upload))
    return CheckpointHubUpload(checkpoint_path, repo, revision, public)


def _patterns(upload: dict[str, Any]) -> dict[str, Any]:
    allow = list(upload["allow_pattern"])
    return {
        "commit_message": upload["commit_message"],
        "create_pr": upload["create_pr"],
        "allow_patterns": allow or None,
        "ignore_patterns": [*upload["ignore_pattern"], *([] if allow else _NEVER)] or None,
    }


def _prepare_adapter(context: CommandContext, folder: Path, path: str) -> str | None:
    """Checks that PEFT can load the folder; names the base model if the files do not."""
    config_path = folder / "adapter_config.json"
    if not config_path.is_file() or not any((folder / name).is_file() for name in _WEIGHTS):
        raise CliError(
            "Checkpoint does not contain a PEFT adapter.",
            f"Needed: adapter_config.json and one of {', '.join(_WEIGHTS)}",
        )
    config = json.loads(config_path.read_text(encoding="utf-8"))
    base_model = config.get("base_model_name_or_path")
    if not base_model:
        base_model = context.wait(
            context.rest.get_training_run_by_tinker_path(path, access_scope="accessible")
        ).base_model
        config["base_model_name_or_path"] = base_model
        config_path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return str(base_model) if base_model else None


def _refuse_foreign(hub: Any, repo: str, revision: str | None, path: str) -> None:
    there = hub.tinker_path(repo, revision)
    if there is not None and there != path:
        raise CliError(
            "Repo ID appears to contain a different Tinker checkpoint.",
            f"{repo} says it holds {there}",
            "Choose another: --repo NAME, or --revision NAME",
        )


def _repo_name(base_model: str | None, run_id: str) -> str:
    short = base_model.rstrip("/").split("/")[-1] if base_model else "adapter"
    return _clean(f"tinker-{short}-{run_id}")


def _clean(text: str) -> str:
    kept = (c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in text)
    return "".join(kept).strip("-.")
