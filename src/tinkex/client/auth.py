"""``tinkex.auth``: is there a credential, and does the server accept it?"""

from __future__ import annotations

from tinkex.client.api import call_policies
from tinkex.client.api.credentials_source import require_stored_key
from tinkex.client.errors import TinkerError
from tinkex.client.session.holder import HolderKind, InternalClientHolder
from tinkex.client.settings.config import Config
from tinkex.client.settings.logins import stored_key
from tinkex.types import GetServerCapabilitiesResponse
from tinkex.wire import routes


def get_tinker_token() -> str | None:
    """The key of this environment, or the stored one; never runs the credential command."""
    try:
        config = Config.resolve()
        return config.api_key or stored_key(config.credentials_path, config.base_url)
    except (TinkerError, OSError, ValueError):
        return None


def tinker_has_credentials() -> bool:
    """Whether some credential is configured. Looks only at this machine."""
    try:
        if Config.resolve().credential_command:
            return True
    except (TinkerError, ValueError):
        return False
    return get_tinker_token() is not None


def raise_if_tinker_not_accessible() -> None:
    """One request that shows whether the service can be used; raises a TinkerError if not."""
    try:
        config = Config.resolve()
        if config.api_key is None and config.credential_command is None:
            require_stored_key(config)
        _probe(config)
    except TinkerError:
        raise
    except Exception as error:
        raise TinkerError(f"The service cannot be reached: {error}") from error


def _probe(config: Config) -> None:
    holder = InternalClientHolder(config, kind=HolderKind.SESSIONLESS)

    async def ask() -> None:
        api = holder.api
        response = await api.send(
            "GET",
            routes.SERVER_CAPABILITIES,
            call_policies.PROBE,
            credential=await api.tokens.raw(),
        )
        api.decode(response, GetServerCapabilitiesResponse, routes.SERVER_CAPABILITIES)

    try:
        holder.submit(ask()).result_here()
    finally:
        holder.close()
