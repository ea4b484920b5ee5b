"""`tinkex auth logout`."""

from __future__ import annotations

from typing import Any

from tinkex.cli.commands.auth.login import CONSOLE
from tinkex.cli.context import CommandContext
from tinkex.cli.errors import CliError
from tinkex.cli.options import command
from tinkex.cli.output import LineOutput


class LoggedOut(LineOutput):
    """A key that is no longer stored; `deleted` if the server forgot it too."""

    def __init__(self, key_id: str, name: str, organization: str | None, deleted: bool) -> None:
        self.key_id = key_id
        self.name = name
        self.organization = organization
        self.deleted = deleted

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "deleted_on_server": self.deleted}

    def lines(self) -> list[str]:
        if self.deleted:
            return [f"Removed credential '{self.name}' and deleted its API key on the server."]
        lines = [f"Removed credential '{self.name}'. The API key is still active."]
        if self.organization:
            lines.append(f"Organization: {self.organization}")
        return [*lines, f"Delete the key in the console: {CONSOLE}/keys/{self.key_id}"]


@command
def logout(context: CommandContext) -> LoggedOut:
    """Forget the stored default credential.

    A key that an older command line created for you is also deleted on the server; one you pasted
    stays valid there.
    """
    store = context.deps.credentials()
    key_id, record = store.get_default_key_id(), store.get_default_key()
    if key_id is None or record is None:
        raise CliError("No default credential is stored", next_step="Next: tinkex auth login")
    generated = record.type == "generated"
    problem = _delete_on_server(context, record.key) if generated else None
    store.delete_key(key_id)
    if problem is not None:
        raise CliError(
            "Could not delete the API key on the server",
            f"Details: {problem.message}. The local record is removed.",
            f"Delete it in the console: {CONSOLE}/keys/{key_id}",
        )
    organization = record.details.org_details.name if record.details else None
    return LoggedOut(key_id, record.name, organization, generated)


def _delete_on_server(context: CommandContext, key: str) -> CliError | None:
    try:
        context.deps.key_service(context.connection).delete(key)
    except CliError as error:
        return error
    return None
