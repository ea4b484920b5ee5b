"""`tinkex engine`: the engines of your own server: how they are, draining and restarting them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import click

from tinkex.cli.commands.home import START_OR_NAME, existing
from tinkex.cli.commands.keys import HOME
from tinkex.cli.errors import CliError
from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import command
from tinkex.cli.outside.server_floor import require_server
from tinkex.cli.terminal.output import TableOutput

_LOOK_S = 0.2
_AT_REST = ("ready", "drained", "asleep")


class Engines(TableOutput):
    """Every engine, and how it is."""

    def __init__(self, engines: list[dict[str, Any]]) -> None:
        self.engines = engines

    def to_dict(self) -> dict[str, Any]:
        return {"engines": self.engines}

    def title(self) -> str:
        ready = sum(engine["state"] == "ready" for engine in self.engines)
        return f"{ready} of {len(self.engines)} engines take work"

    def columns(self) -> list[str]:
        return ["Engine", "State", "Device", "Runs", "Operations", "Sequences", "Deaths", "Reason"]

    def rows(self) -> list[list[str]]:
        return [
            [
                engine["engine"],
                engine["state"],
                engine["device"] or "",
                str(engine["runs"]),
                str(engine["operations"]),
                str(engine["sequences"]),
                str(engine["deaths"]),
                engine["reason"],
            ]
            for engine in self.engines
        ]


@command
@HOME
def list_(_context: CommandContext, home: Path | None) -> Engines:
    """List the engines of the server that runs in a home.

    Example: tinkex engine list
    """
    from tinkex.wire.routes import ENGINES

    return _asked(home, "GET", ENGINES)


@command
@click.argument("engine")
@HOME
def drain(context: CommandContext, engine: str, home: Path | None) -> Engines:
    """Empty an engine: its runs go on elsewhere, and it gets no new work until it is resumed.

    Waits until it is empty. Nothing is lost: runs are written down first, samples end where they
    are. Where a model has no other engine, its runs wait.

    Example: tinkex engine drain tinkex/tiny-llama#1
    """
    from tinkex.wire.routes import DRAIN_ENGINE

    return _settled(context, home, _asked(home, "POST", DRAIN_ENGINE, engine), engine)


@command
@click.argument("engine")
@HOME
def resume(_context: CommandContext, engine: str, home: Path | None) -> Engines:
    """Let a drained engine take work again.

    Example: tinkex engine resume tinkex/tiny-llama#1
    """
    from tinkex.wire.routes import RESUME_ENGINE

    return _asked(home, "POST", RESUME_ENGINE, engine)


@command
@click.argument("engine", required=False)
@HOME
def restart(context: CommandContext, engine: str | None, home: Path | None) -> Engines:
    """Drain and restart an engine, or all of them one after another, without losing a run.

    Waits until they take work again. A restarted engine loads the code and libraries that are
    installed by then.

    Example: tinkex engine restart
    """
    from tinkex.wire.routes import RESTART_ENGINE

    return _settled(context, home, _asked(home, "POST", RESTART_ENGINE, engine), engine)


def _settled(
    context: CommandContext, home: Path | None, found: Engines, engine: str | None
) -> Engines:
    """What there is once the engine meant, or every one, has come to rest."""
    from tinkex.wire.routes import ENGINES

    while any(
        each["state"] not in _AT_REST for each in found.engines if engine in (None, each["engine"])
    ):
        context.deps.sleep(_LOOK_S)
        found = _asked(home, "GET", ENGINES)
    return found


def _asked(home: Path | None, method: str, path: str, engine: str | None = None) -> Engines:
    require_server()
    from tinkex.server.hosting.home_server import Refused, ask
    from tinkex.server.storage.home import Home, HomeTaken
    from tinkex.server.storage.home_rows import WrongRows

    root = existing(home)
    try:
        with contextlib.suppress(WrongRows):  # the lock was free: no server is there
            Home(root).release()
    except HomeTaken as taken:
        body = None if method == "GET" else {} if engine is None else {"engine": engine}
        try:
            return Engines(ask(taken, method, path, body)["engines"])
        except Refused as refusal:
            raise CliError(refusal.detail, next_step="Next: tinkex engine list") from refusal
        except (HomeTaken, OSError) as error:
            raise CliError(f"The server could not be asked: {error}") from error
    raise CliError(f"No server runs in {root}", next_step=START_OR_NAME)
