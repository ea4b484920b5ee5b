"""`tinkex dashboard`: the page of your own server, opened with a link that works once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tinkex.cli.commands.home import START_OR_NAME, existing
from tinkex.cli.commands.keys import HOME
from tinkex.cli.errors import CliError
from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import command
from tinkex.cli.outside.server_floor import require_server
from tinkex.cli.terminal.output import LineOutput


class Invited(LineOutput):
    """A link that lets one browser in, once."""

    def __init__(self, url: str) -> None:
        self.url = url

    def to_dict(self) -> dict[str, Any]:
        return {"url": self.url}

    def lines(self) -> list[str]:
        return [self.url]


@command
@click.option("--no-open", is_flag=True, help="Only print the link.")
@HOME
def dashboard(context: CommandContext, no_open: bool, home: Path | None) -> Invited:
    """Open the page of the server that runs in your home, and print its link.

    The link lets one browser in, once, to see everything; on another machine open the server's
    address and sign in with a key. Over SSH: ssh -L 8000:127.0.0.1:8000 HOST, then --no-open there.

    Example: tinkex dashboard --no-open
    """
    require_server()
    url = _invitation(existing(home))
    if not no_open and context.streams.out.isatty():
        context.deps.browse(url)
    return Invited(url)


def _invitation(root: Path) -> str:
    from tinkex.server.hosting.home_server import ask
    from tinkex.server.storage.home import Home, HomeTaken
    from tinkex.wire.routes import DASHBOARD_INVITATION

    try:
        Home(root).release()
    except HomeTaken as taken:
        try:
            return str(ask(taken, "POST", DASHBOARD_INVITATION)["url"])
        except (HomeTaken, OSError) as error:
            raise CliError(f"There is no link: {error}", next_step=START_OR_NAME) from error
    raise CliError(f"No server runs in {root}", next_step=START_OR_NAME)
