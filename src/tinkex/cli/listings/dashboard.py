"""The dashboard's JSON for commands that draw it; says so where a server has none."""

from __future__ import annotations

from typing import Any

from tinkex.cli.errors import CliError
from tinkex.cli.line.context import CommandContext

_NOT_OFFERED = (404, 405, 501)


def read(context: CommandContext, path: str, **query: Any) -> dict[str, Any]:
    """An answer of the dashboard's."""
    try:
        found: dict[str, Any] = context.wait(context.rest.read_dashboard(path, query))
    except Exception as error:
        if getattr(error, "status_code", None) not in _NOT_OFFERED or "no training run" in str(
            error
        ):
            raise
        raise CliError(
            "This server keeps no histories",
            "They are an addition of tinkex serve; the hosted service does not have them.",
        ) from error
    return found
