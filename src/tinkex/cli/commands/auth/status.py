"""`tinkex auth status`."""

from __future__ import annotations

from typing import Any

from tinkex.cli.errors import CliError
from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import command
from tinkex.cli.terminal.output import LineOutput


class Status(LineOutput):
    """Whether there is a credential, and whether a server takes it."""

    def __init__(self, address: str | None, available: bool, accessible: bool | None) -> None:
        self.address = address
        self.available = available
        self.accessible = accessible

    def to_dict(self) -> dict[str, Any]:
        return {
            "base_url": self.address,
            "credentials_available": self.available,
            "tinker_accessible": self.accessible,
        }

    def lines(self) -> list[str]:
        lines = [
            f"Server: {self.address}",
            f"Credentials available: {'yes' if self.available else 'no'}",
        ]
        if self.accessible is not None:
            lines.append(f"Tinker accessible: {'yes' if self.accessible else 'no'}")
        return lines


@command
def status(context: CommandContext) -> Status:
    """Check whether a credential is configured and whether the server accepts it.

    Example: tinkex auth status --json
    """
    address = context.deps.clients.address(context.connection)
    if not context.deps.clients.has_credentials(context.connection):
        Status(address, False, None).write(context.streams.out, context.format)
        raise CliError(
            "No Tinker credentials are available",
            _others(context) or "Set TINKER_API_KEY, or log in, or use this machine with --local.",
            "Next: tinkex auth login",
        )
    try:
        context.service.get_server_capabilities()
    except Exception:
        Status(address, True, False).write(context.streams.out, context.format)
        raise
    return Status(address, True, True)


def _others(context: CommandContext) -> str | None:
    addresses = context.deps.logins().addresses()
    return f"You are logged in at {', '.join(addresses)}." if addresses else None
