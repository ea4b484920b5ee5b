"""`tinkex model list`: the models a server offers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tinkex.cli.errors import CliError
from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import command
from tinkex.cli.terminal.formats import format_bool, format_optional
from tinkex.cli.terminal.output import TableOutput

if TYPE_CHECKING:
    from tinkex.types import SupportedModel


class ModelList(TableOutput):
    """Models with what can be done with them."""

    def __init__(self, models: list[SupportedModel]) -> None:
        self.models = models

    def to_dict(self) -> dict[str, Any]:
        return {"models": [model.model_dump() for model in self.models]}

    def columns(self) -> list[str]:
        return ["Model", "Max Context", "Trainable", "Sampleable"]

    def rows(self) -> list[list[str]]:
        return [
            [
                format_optional(model.model_name),
                format_optional(model.max_context_length),
                format_optional(model.trainable, format_bool),
                format_optional(model.sampleable, format_bool),
            ]
            for model in self.models
        ]


@command
@click.argument("substring", required=False)
def list_(context: CommandContext, substring: str | None) -> ModelList:
    """List the models the server lets you train or sample.

    SUBSTRING keeps only the names that contain it, in any case.

    Example: tinkex model list qwen
    """
    models = list(context.within(context.service.get_server_capabilities).supported_models)
    if substring is None:
        return ModelList(models)
    wanted = substring.lower()
    matching = [model for model in models if wanted in (model.model_name or "").lower()]
    if not matching:
        raise CliError(
            f"No model name contains '{substring}'{_organization(context)}",
            next_step="Next: tinkex model list",
        )
    return ModelList(matching)


def _organization(context: CommandContext) -> str:
    """Names the organization where the server knows it; a server without accounts does not."""
    try:
        return f" for organization {context.wait(context.rest.whoami()).org_urn}"
    except Exception:
        return ""
