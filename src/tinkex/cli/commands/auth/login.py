"""`tinkex auth login`."""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import urlencode

from tinkex.cli.commands.auth.secret import ask_secret
from tinkex.cli.context import CommandContext
from tinkex.cli.errors import CliError
from tinkex.cli.options import command
from tinkex.cli.output import LineOutput
from tinkex.client.credentials import ApiKeyDetails, ManualKey

CONSOLE = "https://tinker.thinkingmachines.ai"


class LoggedIn(LineOutput):
    """Who the stored key belongs to."""

    def __init__(self, record: ManualKey) -> None:
        self.record = record

    def to_dict(self) -> dict[str, Any]:
        details = self.record.details
        return {
            "name": self.record.name,
            "email": details.user_details.email if details else None,
            "organization": details.org_details.name if details else None,
        }

    def lines(self) -> list[str]:
        facts = self.to_dict()
        who = f"Logged in as {facts['email']} ({facts['organization']})." if facts["email"] else ""
        stored = f"Stored API key '{self.record.name}' as the default credential."
        return [f"{who} {stored}".strip()]


@command
def login(context: CommandContext) -> LoggedIn:
    """Store an API key, checked with the server, as the default credential."""
    store = context.deps.credentials()
    if store.get_default_key() is not None:
        raise CliError("Already logged in", next_step="Next: tinkex auth logout")
    _show_where_keys_are_made(context)
    key = context.connection.api_key or ask_secret(context, "Paste your API key")
    if not key:
        raise CliError("The API key must not be empty")
    record = _validated(context, key)
    store.add_key(str(record["key_id"]), manual := _manual_key(key, record))
    store.set_default(str(record["key_id"]))
    return LoggedIn(manual)


def _show_where_keys_are_made(context: CommandContext) -> None:
    if context.connection.api_key or context.connection.base_url:
        return
    host = socket.gethostname().split(".")[0]
    query = urlencode({"new_key": "true", "key_name": f"tinkex-cli-{host}"})
    url = f"{CONSOLE}/keys?{query}"
    link = f"\x1b]8;;{url}\x1b\\{url}\x1b]8;;\x1b\\" if context.streams.err.isatty() else url
    context.note(f"Create an API Key: {link}\n")


def _validated(context: CommandContext, key: str) -> dict[str, Any]:
    try:
        return context.deps.key_service(context.connection).describe(key)
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
