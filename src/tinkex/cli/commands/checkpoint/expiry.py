"""`tinkex checkpoint set-ttl`."""

from __future__ import annotations

from typing import Any

import click

from tinkex.cli.checkpoint_path import check_path
from tinkex.cli.context import CommandContext
from tinkex.cli.errors import CliError
from tinkex.cli.options import command
from tinkex.cli.output import LineOutput


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
        return [f"Updated TTL for {self.path} to {self.ttl_seconds} seconds"]


@command
@click.argument("checkpoint_path")
@click.option("--ttl", type=int, metavar="SECONDS", help="Seconds from now until it expires.")
@click.option("--remove", is_flag=True, help="Keep the checkpoint for ever.")
def set_ttl(
    context: CommandContext, checkpoint_path: str, ttl: int | None, remove: bool
) -> ExpirySet:
    """Set when a checkpoint expires, or remove its expiry.

    Give either --ttl or --remove.
    """
    example = f"Example: tinkex checkpoint set-ttl {checkpoint_path} --ttl 86400"
    if ttl is None and not remove:
        raise CliError("Must specify either --ttl <seconds> or --remove", example)
    if ttl is not None and remove:
        raise CliError("Cannot specify both --ttl and --remove", example)
    if ttl is not None and ttl <= 0:
        raise CliError(f"--ttl must be above zero, not {ttl}", example)
    check_path(checkpoint_path)
    context.wait(context.rest.set_checkpoint_ttl_from_tinker_path(checkpoint_path, ttl))
    return ExpirySet(checkpoint_path, ttl)
