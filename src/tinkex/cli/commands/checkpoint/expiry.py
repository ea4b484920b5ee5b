"""`tinkex checkpoint set-ttl`."""

from __future__ import annotations

import math
from typing import Any

import click

from tinkex.cli.errors import CliError
from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import Duration, command
from tinkex.cli.listings.naming import find_checkpoint
from tinkex.cli.terminal.formats import format_span
from tinkex.cli.terminal.output import LineOutput


class ExpirySet(LineOutput):
    """A checkpoint whose expiry was set, or removed when `ttl_seconds` is None."""

    def __init__(self, path: str, ttl_seconds: int | None) -> None:
        self.path = path
        self.ttl_seconds = ttl_seconds

    def to_dict(self) -> dict[str, Any]:
        return {"action": "set-ttl", "tinker_path": self.path, "ttl_seconds": self.ttl_seconds}

    def lines(self) -> list[str]:
        if self.ttl_seconds is None:
            return [f"Removed expiration for {self.path}"]
        return [f"Updated TTL for {self.path}: it expires in {format_span(self.ttl_seconds)}"]


@command
@click.argument("checkpoint_path")
@click.option(
    "--ttl",
    type=Duration("s"),
    metavar="TIME",
    help="How long it stays from now on: 30m, 12h, 1d, 2w; a bare number is seconds.",
)
@click.option("--remove", is_flag=True, help="Keep the checkpoint for ever.")
def set_ttl(
    context: CommandContext, checkpoint_path: str, ttl: float | None, remove: bool
) -> ExpirySet:
    """Set when a checkpoint expires, or remove its expiry.

    Give either --ttl or --remove.

    Example: tinkex checkpoint set-ttl tinker://varn/weights/step-100 --ttl 1d
    """
    example = f"Example: tinkex checkpoint set-ttl {checkpoint_path} --ttl 1d"
    if ttl is None and not remove:
        raise CliError("Must specify either --ttl <seconds> or --remove", example, exit_code=2)
    if ttl is not None and remove:
        raise CliError("Cannot specify both --ttl and --remove", example, exit_code=2)
    checkpoint_path = find_checkpoint(context, checkpoint_path)
    seconds = None if ttl is None else math.ceil(ttl)
    context.wait(context.rest.set_checkpoint_ttl_from_tinker_path(checkpoint_path, seconds))
    return ExpirySet(checkpoint_path, seconds)
