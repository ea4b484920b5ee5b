"""The one place that makes SDK clients for commands, and explains why one cannot be made.

Hands over only what the user gave; the SDK's configuration adds environment, stored login and
defaults. A person is waiting, so clients give up early.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from tinkex.cli.errors import CliError
from tinkex.cli.outside.dependencies import Connection

if TYPE_CHECKING:
    from tinkex.client.settings.config import Config

CONNECT_SECONDS = 3.0  # three attempts: a host that does not answer is known within ten seconds
REQUEST_SECONDS = 60.0
CLOSE_SECONDS = 30.0
INTERRUPTED_SECONDS = 3.0
_WAYS_TO_A_KEY = (
    "Next: add --local to use this machine, or start a server with tinkex serve,\n"
    "      or tinkex auth login, or export TINKER_API_KEY=tml-..."
)


class SdkClients:
    """Clients of the real SDK."""

    def rest(self, connection: Connection) -> Any:
        from tinkex import RestClient

        return RestClient.from_config(self.config(connection))

    def admin(self, connection: Connection) -> Any:
        from tinkex import AdminClient

        return AdminClient.from_config(self.config(connection))

    def service(self, connection: Connection) -> Any:
        from tinkex import ServiceClient

        return ServiceClient.from_config(self.config(connection))

    def close(self, client: Any, status: str) -> None:
        """Ends the client's session and background work; a server that is gone is no failure."""
        seconds = INTERRUPTED_SECONDS if status == "interrupted" else CLOSE_SECONDS
        with contextlib.suppress(Exception):
            if hasattr(client, "close"):
                client.close(status).result(seconds)
            elif status != "interrupted":
                client.holder.close()

    def address(self, connection: Connection) -> str | None:
        try:
            return self._resolve(connection).base_url
        except Exception:
            return connection.base_url

    def account(self, connection: Connection) -> str:
        """What tells this server and account from others."""
        from tinkex.client.settings.logins import stored_key

        config = self._resolve(connection)
        key = (
            config.api_key
            or config.credential_command
            or stored_key(config.credentials_path, config.base_url)
        )
        return f"{config.base_url} {key}"

    def has_credentials(self, connection: Connection) -> bool:
        from tinkex.client.settings.logins import stored_key

        config = self._resolve(connection)
        known = config.api_key or config.credential_command or config.is_on_this_machine
        return bool(known or stored_key(config.credentials_path, config.base_url))

    def config(self, connection: Connection) -> Config:
        """The configuration for a command; a missing or malformed part is explained."""
        try:
            config = self._resolve(connection)
            known = self.has_credentials(connection)
        except ImportError as error:
            raise CliError(f"Failed to import Tinker SDK: {error}") from error
        except Exception as error:
            ways = _WAYS_TO_A_KEY if "key" in str(error) else None
            typed = 2 if connection.options() else 1  # what was typed is wrong usage
            raise CliError(f"Configuration error: {error}", None, ways, typed) from error
        if not known:
            raise CliError(
                "Configuration error: No API key is configured",
                f"Server: {config.base_url}{_logged_in_elsewhere(config)}",
                _WAYS_TO_A_KEY,
            )
        return config

    def _resolve(self, connection: Connection) -> Config:
        from tinkex.client.settings.config import Config, Timeout
        from tinkex.client.settings.timings import Timings

        seconds = connection.timeout or REQUEST_SECONDS
        return Config.resolve(
            **connection.options(),
            timings=Timings.impatient(),
            timeout=Timeout(seconds, connect=min(seconds, CONNECT_SECONDS)),
        )


def _logged_in_elsewhere(config: Config) -> str:
    from tinkex.client.settings.logins import Logins

    addresses = Logins(config.credentials_path).addresses()
    return f" (you are logged in at {', '.join(addresses)})" if addresses else ""
