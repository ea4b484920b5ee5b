"""The way from commands to the server floor, which may not be installed."""

from __future__ import annotations

import os
from pathlib import Path

from tinkex.cli.errors import CliError, reachable


def require_server() -> None:
    """Raises `CliError` that says how to install the server, unless it is there."""
    try:
        import tinkex.server.keys  # noqa: F401
    except ImportError as error:
        raise CliError(
            f"The server is not installed: {error}", next_step="Next: pip install 'tinkex[server]'"
        ) from error


def default_home() -> Path:
    """The home that `tinkex serve` and `--local` use when none is named."""
    from tinkex.server.home import default_home as of_server

    return of_server(os.environ)


def serving_address() -> str | None:
    """Where a `tinkex serve` that holds the default home answers; None if none does."""
    try:
        from tinkex.server.home import address_of
    except ImportError:
        return None
    address = address_of(default_home())
    return None if address is None else reachable(address)
