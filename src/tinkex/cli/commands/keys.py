"""`tinkex keys`: the API keys of your own server, kept in its home."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinkex.cli.errors import CliError
from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import Duration, Folder, command
from tinkex.cli.outside.server_floor import default_home, require_server
from tinkex.cli.terminal.formats import format_timestamp
from tinkex.cli.terminal.output import LineOutput, TableOutput

if TYPE_CHECKING:
    from tinkex.server.tenancy.keys import Key, KeyFile

HOME = click.option(
    "--home",
    type=Folder(),
    help="The server's home (default: the one tinkex serve uses).",
)


class KeyCreated(LineOutput):
    """A new key and its secret, which is shown this once."""

    def __init__(self, key: Key, secret: str) -> None:
        self.key = key
        self.secret = secret

    def to_dict(self) -> dict[str, Any]:
        return {**facts(self.key), "key": self.secret}

    def lines(self) -> list[str]:
        return [self.secret]


class KeyList(TableOutput):
    """All keys, without their secrets."""

    def __init__(self, keys: tuple[Key, ...], now: datetime) -> None:
        self.keys = keys
        self.now = now

    def to_dict(self) -> dict[str, Any]:
        now = self.now.timestamp()
        return {"keys": [{**facts(key), "status": key.status(now)} for key in self.keys]}

    def title(self) -> str:
        count = len(self.keys)
        return f"{count or 'No'} key{'' if count == 1 else 's'}"

    def columns(self) -> list[str]:
        return ["ID", "Name", "Sees", "Status", "Created", "Expires"]

    def rows(self) -> list[list[str]]:
        return [self._row(key) for key in self.keys]

    def _row(self, key: Key) -> list[str]:
        expires = moment(key.expires_at)
        return [
            key.id,
            key.name,
            "Everything" if key.operator else "Own",
            key.status(self.now.timestamp()),
            format_timestamp(moment(key.created_at), self.now),
            format_timestamp(expires, self.now) if expires else "Never",
        ]


class KeyRevoked(LineOutput):
    """A key that no longer opens anything."""

    def __init__(self, key: Key) -> None:
        self.key = key

    def to_dict(self) -> dict[str, Any]:
        return facts(self.key)

    def lines(self) -> list[str]:
        return [f"Revoked key {self.key.id} of {self.key.name}"]


def facts(key: Key) -> dict[str, Any]:
    """What may be shown of a key."""
    return {
        "id": key.id,
        "name": key.name,
        "operator": key.operator,
        "created_at": moment(key.created_at),
        "expires_at": moment(key.expires_at),
        "revoked_at": moment(key.revoked_at),
    }


def moment(seconds: float | None) -> datetime | None:
    """A stored time, to the second."""
    return None if seconds is None else datetime.fromtimestamp(int(seconds), UTC)


@command
@click.argument("name")
@click.option(
    "--expires-in",
    type=Duration("s"),
    metavar="TIME",
    help="How long it works: 30m, 24h, 90d; a bare number is seconds.",
)
@click.option("--operator", is_flag=True, help="Let it see and end what belongs to every user.")
@HOME
def create(
    context: CommandContext,
    name: str,
    expires_in: float | None,
    operator: bool,
    home: Path | None,
) -> KeyCreated:
    """Create a key for the user NAME and print it. It cannot be shown again.

    Keys with the same name belong to the same user: they see the same runs and checkpoints. An
    operator's key sees those of all users, on the dashboard and on the command line.

    Example: tinkex keys create alice --expires-in 90d --home /srv/tinkex
    """
    keys = _keys(home)
    try:
        key, secret = keys.create(name, expires_in, operator=operator)
    except ValueError as error:
        raise CliError(f"Could not create the key: {error}") from error
    context.narrate("Keep this key: only a hash of it is stored.")
    if len(keys.list()) == 1:
        context.narrate("From its next start on the server asks for a key, on this machine too.")
    return KeyCreated(key, secret)


@command
@HOME
def list_(context: CommandContext, home: Path | None) -> KeyList:
    """List all keys ever made, never their secrets.

    Example: tinkex keys list --home /srv/tinkex
    """
    try:
        return KeyList(_keys(home).list(), context.now)
    except ValueError as error:
        raise CliError(f"Could not read the keys: {error}") from error


@command
@click.argument("key_id")
@HOME
def revoke(_context: CommandContext, key_id: str, home: Path | None) -> KeyRevoked:
    """Revoke the key with the id KEY_ID; a running server refuses it at once.

    Example: tinkex keys revoke 3f2a9c01 --home /srv/tinkex
    """
    try:
        return KeyRevoked(_keys(home).revoke(key_id))
    except ValueError as error:
        raise CliError(
            f"Could not revoke the key: {error}", next_step="Next: tinkex keys list"
        ) from error


def _keys(home: Path | None) -> KeyFile:
    require_server()
    from tinkex.server.tenancy.keys import KeyFile

    return KeyFile(home or default_home())
