"""`tinkex checkpoint publish` and `unpublish`."""

from __future__ import annotations

from typing import Any

import click

from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import command
from tinkex.cli.listings.naming import find_checkpoint
from tinkex.cli.terminal.output import LineOutput


class Shared(LineOutput):
    """A checkpoint whose visibility was changed."""

    def __init__(self, action: str, path: str) -> None:
        self.action = action
        self.path = path

    def to_dict(self) -> dict[str, Any]:
        return {"action": self.action, "tinker_path": self.path}

    def lines(self) -> list[str]:
        return [f"{self.action.capitalize()}ed {self.path}"]


class Cancelled(LineOutput):
    """Nothing was done, because the person said no."""

    def __init__(self, sentence: str) -> None:
        self.sentence = sentence

    def to_dict(self) -> dict[str, Any]:
        return {"action": "cancelled"}

    def lines(self) -> list[str]:
        return [self.sentence]


@command
@click.argument("checkpoint_path")
def publish(context: CommandContext, checkpoint_path: str) -> Shared:
    """Let everyone on the server read a checkpoint.

    Example: tinkex checkpoint publish tinker://varn/sampler_weights/final
    """
    checkpoint_path = find_checkpoint(context, checkpoint_path)
    context.wait(context.rest.publish_checkpoint_from_tinker_path(checkpoint_path))
    return Shared("publish", checkpoint_path)


@command
@click.argument("checkpoint_path")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def unpublish(context: CommandContext, checkpoint_path: str, yes: bool) -> LineOutput:
    """Make a published checkpoint private again.

    Asks first when a person is at the terminal.

    Example: tinkex checkpoint unpublish tinker://varn/sampler_weights/final
    """
    checkpoint_path = find_checkpoint(context, checkpoint_path)
    question = f"Others will lose access to {checkpoint_path}. Unpublish it?"
    if not yes and context.can_ask and not context.confirm(question):
        return Cancelled("Unpublishing cancelled.")
    context.wait(context.rest.unpublish_checkpoint_from_tinker_path(checkpoint_path))
    return Shared("unpublish", checkpoint_path)
