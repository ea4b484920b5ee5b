"""`tinkex auth login`."""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import urlencode

from tinkex.cli.commands.auth.secret import ask_secret
from tinkex.cli.errors import CliError
from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import command
from tinkex.cli.terminal.output import LineOutput
from tinkex.client.settings.config import LOCAL_BASE_URL, Config
from tinkex.client.settings.credentials import ApiKeyDetails, ManualKey
from tinkex.client.settings.logins import Login
from tinkex.wire.limits import API_KEY_PREFIX, HOSTED_URL

CONSOLE = "https://tinker.thinkingmachines.ai"
_NO_KEY = f"{API_KEY_PREFIX}unused"  # a key that was given keeps stored logins out of the question


class LoggedIn(LineOutput):
    """Who the stored key belongs to."""

    def __init__(self, address: str, record: ManualKey) -> None:
        self.address = address
        self.record = record

    def to_dict(self) -> dict[str, Any]:
        details = self.record.details
        return {
            "base_url": self.address,
            "name": self.record.name,
            "email": details.user_details.email if details else None,
            "organization": details.org_details.name if details else None,
        }

    def lines(self) -> list[str]:
        facts = self.to_dict()
        who = f"Logged in as {facts['email']} ({facts['organization']})." if facts["email"] else ""
        stored = f"Stored API key '{self.record.name}' as the default credential."
        where = f"It is for {self.address} only, where commands go now that name no --base-url."
        return [f"{who} {stored}".strip(), *([] if self.address == HOSTED_URL else [where])]


@command
def login(context: CommandContext) -> LoggedIn:
    """Store an API key, checked with the server, as the default credential.

    The key is for one server: the hosted service, or the one named with --base-url. Each server has
    a login of its own, and commands that name no server go to that of the latest login.

    Example: tinkex auth login --base-url http://gpu-box:8000
    """
    logins, address = context.deps.logins(), _address(context)
    if logins.get(address) is not None:
        raise CliError(f"Already logged in at {address}", next_step=f"Next: {logout_of(address)}")
    _show_where_keys_are_made(context, address)
    key = context.connection.api_key or ask_secret(context, "Paste your API key")
    if not key:
        raise CliError("The API key must not be empty")
    record = _validated(context, address, key)
    manual = _manual_key(key, record)
    logins.add(address, Login(str(record["key_id"]), manual))
    return LoggedIn(address, manual)


def _address(context: CommandContext) -> str:
    """The server to log in at: as given or as the environment says, whatever logins there are."""
    try:
        address = Config.resolve(base_url=context.connection.base_url, api_key=_NO_KEY).base_url
    except ValueError as error:
        raise CliError(f"Configuration error: {error}") from error
    if address == LOCAL_BASE_URL:
        raise CliError("The server of this machine needs no login", next_step="Next: use --local")
    return address


def logout_of(address: str) -> str:
    """The command that undoes a login."""
    option = "" if address == HOSTED_URL else f" --base-url {address}"
    return f"tinkex auth logout{option}"


def _show_where_keys_are_made(context: CommandContext, address: str) -> None:
    if context.connection.api_key or address != HOSTED_URL:
        return
    host = socket.gethostname().split(".")[0]
    query = urlencode({"new_key": "true", "key_name": f"tinkex-cli-{host}"})
    url = f"{CONSOLE}/keys?{query}"
    link = f"\x1b]8;;{url}\x1b\\{url}\x1b]8;;\x1b\\" if context.streams.err.isatty() else url
    context.note(f"Create an API Key: {link}\n")


def _validated(context: CommandContext, address: str, key: str) -> dict[str, Any]:
    try:
        return context.deps.key_service(address).describe(key)
    except CliError as error:
        raise CliError(
            "Could not validate the API key", f"Details: {error.message}", error.next_step
        ) from error


def _manual_key(key: str, record: dict[str, Any]) -> ManualKey:
    try:
        details = ApiKeyDetails.from_dict(record["details"])
    except (KeyError, TypeError):
        details = None
    name = str(record.get("name") or record["key_id"])
    return ManualKey(key=key, name=name, note=record.get("note"), details=details)
