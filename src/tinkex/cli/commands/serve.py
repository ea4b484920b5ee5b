"""`tinkex serve`: the whole server, in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tinkex.cli.context import CommandContext
from tinkex.cli.options import command
from tinkex.cli.server_floor import require_server


@command
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="MODEL",
    help="A Hugging Face id, a folder "
    "or a built-in to serve; repeatable (default: SmolLM2-135M-Instruct).",
)
def serve(context: CommandContext, **options: Any) -> None:
    """Serve the API on this machine, to the official client and to this one."""
    require_server()
    raise NotImplementedError
