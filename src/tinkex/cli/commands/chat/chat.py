"""`tinkex chat`: talk with a model, or with what was trained last."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from tinkex.cli.commands.chat.answering import Answering
from tinkex.cli.commands.chat.conversation import Conversation
from tinkex.cli.commands.chat.session import Session
from tinkex.cli.commands.run.choice import chosen_model
from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import command
from tinkex.cli.listings.checkpoint_path import SCHEME
from tinkex.cli.terminal.output import Output

_LOOKED_AT = 100


class Talked(Output):
    """The conversation, for programs; people have seen it."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation

    def to_dict(self) -> dict[str, Any]:
        return self._conversation.to_dict()

    def write_for_people(self, stream: Any) -> None:
        """Nothing: it was written as it came."""


@command
@click.argument("model", required=False)
@click.option("--system", metavar="TEXT", help="How the model shall answer.")
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=1024,
    show_default=True,
    help="The most tokens of one answer.",
)
@click.option("--temperature", type=click.FloatRange(min=0), default=0.7, show_default=True)
@click.option("--top-p", type=click.FloatRange(0, 1), default=1.0, show_default=True)
@click.option("--seed", type=int, help="The same seed and messages give the same answers.")
def chat(context: CommandContext, model: str | None, system: str | None, **sampling: Any) -> Talked:
    """Talk with a model: its name, or a tinker:// path of saved weights.

    Without one, with the weights you saved last for sampling. With no server and no key
    configured, on this machine. Each line of a pipe is a message.

    Example: tinkex chat --local
    """
    from tinkex import RetryConfig
    from tinkex.types import SamplingParams

    context = _at_home(context)
    context.narrate_start()
    chosen = _chosen(context, model)
    client = context.within(
        lambda: context.service.create_sampling_client(
            **chosen, retry_config=RetryConfig(enable_retry_logic=False)
        )
    )
    answering = Answering(context, client, SamplingParams(**sampling))
    conversation = Conversation(next(iter(chosen.values())), system)
    Session(context, conversation, answering).run()
    return Talked(conversation)


def _at_home(context: CommandContext) -> CommandContext:
    """The same on this machine where nothing says which server."""
    connection = context.connection
    if connection.options() or context.deps.clients.has_credentials(connection):
        return context
    return replace(context, connection=replace(connection, base_url="local"))


def _chosen(context: CommandContext, model: str | None) -> dict[str, str]:
    if model is None:
        latest = _saved_last(context)
        return {"model_path": latest} if latest else chosen_model(context, None, None)
    is_path = model.startswith(SCHEME)
    return chosen_model(context, None if is_path else model, model if is_path else None)


def _saved_last(context: CommandContext) -> str | None:
    """The path of the weights saved last for sampling; None if there are none."""
    page = context.wait(context.rest.list_user_checkpoints(limit=_LOOKED_AT))
    saved = [item for item in page.checkpoints if item.checkpoint_type == "sampler"]
    return max(saved, key=lambda item: item.time).tinker_path if saved else None
