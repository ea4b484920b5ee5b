"""`tinkex auth logout`."""

from __future__ import annotations

from typing import Any

from tinkex.cli.commands.auth.login import CONSOLE, logout_of
from tinkex.cli.errors import CliError
from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import command
from tinkex.cli.terminal.output import LineOutput
from tinkex.client.settings.config import normalise_url
from tinkex.client.settings.logins import Login, Logins
from tinkex.wire.limits import HOSTED_URL


class LoggedOut(LineOutput):
    """A key that is no longer stored; `deleted` if the server forgot it too."""

    def __init__(self, address: str, login: Login) -> None:
        details = login.record.details
        self.address = address
        self.key_id = login.key_id
        self.name = login.record.name
        self.organization = details.org_details.name if details else None
        self.deleted = login.record.type == "generated"

    def to_dict(self) -> dict[str, Any]:
        return {"base_url": self.address, "name": self.name, "deleted_on_server": self.deleted}

    def lines(self) -> list[str]:
        if self.deleted:
            return [f"Removed credential '{self.name}' and deleted its API key on the server."]
        lines = [f"Removed credential '{self.name}'. The API key is still active."]
        if self.organization:
            lines.append(f"Organization: {self.organization}")
        if self.address != HOSTED_URL:
            return [*lines, f"Server: {self.address}"]
        return [*lines, f"Delete the key in the console: {CONSOLE}/keys/{self.key_id}"]


@command
def logout(context: CommandContext) -> LoggedOut:
    """Forget the stored default credential.

    That of the server that commands go to, or of the one named with --base-url. A key that an older
    command line created for you is also deleted on the server; one you pasted stays valid there.

    Example: tinkex auth logout --base-url http://gpu-box:8000
    """
    logins = context.deps.logins()
    address = context.connection.base_url or logins.default_address
    address = normalise_url(address)
    login = logins.get(address)
    if login is None:
        raise CliError("No default credential is stored", *_instead(logins, address))
    done = LoggedOut(address, login)
    problem = _delete_on_server(context, address, login.record.key) if done.deleted else None
    logins.remove(address)
    if problem is not None:
        raise CliError(
            "Could not delete the API key on the server",
            f"Details: {problem.message}. The local record is removed.",
            f"Delete it in the console: {CONSOLE}/keys/{login.key_id}",
        )
    return done


def _instead(logins: Logins, address: str) -> tuple[str, str]:
    others = logins.addresses()
    if not others:
        return f"Server: {address}", "Next: tinkex auth login"
    return f"There is none for {address}", f"Next: {logout_of(others[0])}"


def _delete_on_server(context: CommandContext, address: str, key: str) -> CliError | None:
    try:
        context.deps.key_service(address).delete(key)
    except CliError as error:
        return error
    return None
