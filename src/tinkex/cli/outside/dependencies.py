"""Everything that commands use outside themselves, in one replaceable value.

Tests pass in their own; the defaults are the real things. Nothing here is imported by the quick
paths.
"""

from __future__ import annotations

import shlex
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from tinkex.cli.outside.hub import Hub
    from tinkex.cli.outside.key_service import KeyService
    from tinkex.cli.transfer.source import Source
    from tinkex.client.settings.logins import Logins


@dataclass(frozen=True)
class Connection:
    """How the user asked to reach the server. None means: as configured."""

    api_key: str | None = field(default=None, repr=False)
    base_url: str | None = None
    timeout: float | None = None

    def options(self) -> dict[str, Any]:
        """What was given, by the names the SDK takes; nothing else."""
        given = {"api_key": self.api_key, "base_url": self.base_url}
        return {name: value for name, value in given.items() if value is not None}

    def flags(self) -> str:
        """What to type to reach the same server again; empty when nothing was typed for it."""
        if self.base_url == "local":
            return "--local"
        return f"--base-url {shlex.quote(self.base_url)}" if self.base_url else ""


class Clients(Protocol):
    """Makes SDK clients, turning set-up problems into one clear line, and closes them."""

    def rest(self, connection: Connection) -> Any: ...
    def admin(self, connection: Connection) -> Any: ...
    def service(self, connection: Connection) -> Any: ...
    def close(self, client: Any, status: str) -> None: ...
    def address(self, connection: Connection) -> str | None: ...
    def has_credentials(self, connection: Connection) -> bool: ...
    def account(self, connection: Connection) -> str: ...


def _sdk_clients() -> Clients:
    from tinkex.cli.outside.clients import SdkClients

    return SdkClients()


def _logins() -> Logins:
    from tinkex.client.settings.config import Config
    from tinkex.client.settings.logins import Logins
    from tinkex.wire.limits import LOCAL_API_KEY

    return Logins(Config.resolve(base_url="local", api_key=LOCAL_API_KEY).credentials_path)


def _key_service(address: str) -> KeyService:
    from tinkex.cli.outside.key_service import HttpKeyService

    return HttpKeyService(address)


def _source(embedded: bool) -> Source:
    from tinkex.cli.transfer.source import EmbeddedSource, NetworkSource

    return EmbeddedSource() if embedded else NetworkSource()


def _hub() -> Hub:
    from tinkex.cli.outside.hub import Hub

    return Hub()


def _cache_folder() -> Path:
    from tinkex.client.settings.config import user_cache_directory

    return user_cache_directory()


def _sleep(seconds: float) -> None:
    """A wait that Ctrl-C ends at once."""
    threading.Event().wait(seconds)


def _browse(url: str) -> bool:
    """Whether a browser was started with this address."""
    import webbrowser

    return webbrowser.open(url)


@dataclass(frozen=True)
class Dependencies:
    """The outside world of a command."""

    clients: Clients = field(default_factory=_sdk_clients)  # of the SDK
    now: Callable[[], datetime] = lambda: datetime.now(UTC)  # the time
    stdin: Callable[[], TextIO] = lambda: sys.stdin  # what is typed or piped in
    logins: Callable[[], Logins] = _logins  # keys that were logged in with
    key_service: Callable[[str], KeyService] = _key_service  # who makes keys, by address
    source: Callable[[bool], Source] = _source  # of downloads
    hub: Callable[[], Hub] = _hub  # Hugging Face's
    cache_folder: Callable[[], Path] = _cache_folder  # for what is fetched once
    sleep: Callable[[float], object] = _sleep  # between two looks
    browse: Callable[[str], bool] = _browse  # opens an address; whether it could
