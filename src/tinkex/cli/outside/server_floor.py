"""The way from commands to the server floor, which may not be installed."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from tinkex.cli.errors import CliError

_NEEDED = ("starlette", "uvicorn", "torch", "safetensors")


def require_server() -> None:
    """Raises `CliError` that says how to install the server, unless it is there."""
    missing = [package for package in _NEEDED if not _is_installed(package)]
    if missing:
        raise CliError(
            "The server is not installed",
            f"Missing: {', '.join(missing)}",
            "Next: pip install 'tinkex[server]'",
        )


def _is_installed(package: str) -> bool:
    """Looks, and imports nothing: torch alone would take a second."""
    try:
        return find_spec(package) is not None
    except ImportError:
        return False


def default_home() -> Path:
    """The home that `tinkex serve` and `--local` use when none is named."""
    from tinkex.server.storage.home import default_home as of_server

    return of_server(os.environ)


def address_of_home() -> str | None:
    """Where the last `tinkex serve` of the default home answers, if it still does."""
    try:
        from tinkex.server.storage.home import holder_of
    except ImportError:
        return None
    holder = holder_of(default_home())
    return None if holder is None else holder.address or None


def is_ours(address: str) -> bool:
    """Whether the server of our own home answers there."""
    home = address_of_home()
    return home is not None and _place(home) == _place(address)


def folder_of_home(name: str) -> Path | None:
    """Where the servers of the default home had this model from."""
    from tinkex.server.storage.home_models import folder_of

    return folder_of(default_home(), name)


def _place(address: str) -> tuple[str | None, int | None]:
    from tinkex.client.settings.config import LOOPBACK

    parts = urlsplit(address)
    host = "loopback" if parts.hostname in LOOPBACK else parts.hostname
    return host, parts.port
