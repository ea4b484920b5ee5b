"""`tinkex auth whoami`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinkex.cli.errors import CliError
from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import command
from tinkex.cli.terminal.formats import format_optional
from tinkex.cli.terminal.output import PropertyOutput

if TYPE_CHECKING:
    from tinkex.types import WhoamiResponse


class Whoami(PropertyOutput):
    """The account a credential speaks for."""

    def __init__(self, account: WhoamiResponse) -> None:
        self.account = account

    def to_dict(self) -> dict[str, Any]:
        return self.account.model_dump()

    def rows(self) -> list[list[str]]:
        return [
            ["Email", format_optional(self.account.email)],
            ["User", self.account.user_urn],
            ["Organization", self.account.org_urn],
        ]


@command
def whoami(context: CommandContext) -> Whoami:
    """Show the user and the organization of the credential in use.

    Example: tinkex auth whoami
    """
    try:
        return Whoami(context.wait(context.rest.whoami()))
    except RuntimeError as error:
        raise CliError(
            "This server does not say who you are",
            f"Details: {error}",
            "Check your access instead: tinkex auth status",
        ) from error
