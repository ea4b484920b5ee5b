"""Which model `run sample` is about: the one named, or the only one there is."""

from __future__ import annotations

import click

from tinkex.cli.errors import CliError
from tinkex.cli.line.context import CommandContext
from tinkex.cli.listings.checkpoint_path import SCHEME
from tinkex.cli.listings.naming import find_checkpoint

_MODELS_NAMED = 4


def chosen_model(
    context: CommandContext, base_model: str | None, model_path: str | None
) -> dict[str, str]:
    """The model to sample, as the SDK's argument; where none is named, the one there is."""
    if base_model is not None and model_path is not None:
        raise click.UsageError("Give --base-model or --model-path, not both.")
    if model_path is not None:
        return {"model_path": _checked_path(context, model_path)}
    return {"base_model": base_model or _only_model(context)}


def _checked_path(context: CommandContext, model_path: str) -> str:
    if not model_path.startswith(SCHEME):
        raise CliError(
            f"--model-path must be a tinker:// path, not {model_path!r}",
            next_step="Next: tinkex checkpoint list",
            exit_code=2,
        )
    return find_checkpoint(context, model_path)


def _only_model(context: CommandContext) -> str:
    """The only model of the server; the first one of this machine's own."""
    models = context.within(context.service.get_server_capabilities).supported_models
    names = [str(model.model_name) for model in models if model.model_name]
    if not names:
        raise CliError("The server offers no model", next_step="Next: tinkex model local")
    if len(names) > 1 and context.connection.base_url != "local" and not context.is_embedded:
        some = ", ".join(names[:_MODELS_NAMED]) + (", ..." if len(names) > _MODELS_NAMED else "")
        raise CliError(
            "Missing --base-model (or --model-path)",
            f"The server has {len(names)} models: {some}",
            "Next: tinkex model list",
            exit_code=2,
        )
    context.narrate(f"Using {names[0]}")
    return names[0]
