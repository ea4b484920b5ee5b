"""Which credential goes into the next request: a key, a JWT, or what a command prints.

Resolves the raw credential and, when the server asks for it, trades it for a short-lived JWT that
is renewed when needed. Knows nothing about requests beyond the exchange function it is given.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
import subprocess
import time
from collections.abc import Awaitable, Callable
from typing import Any

from tinkex.client.errors import TinkerError
from tinkex.client.settings.config import DEFAULT_BASE_URL, Config, check_key
from tinkex.client.settings.logins import Logins, stored_key
from tinkex.wire.limits import JWT_PREFIX, LOCAL_API_KEY

COMMAND_TIMEOUT = 60.0

Exchange = Callable[[str], Awaitable[str]]
"""Trades a raw credential for a JWT."""

logger = logging.getLogger("tinkex")


def is_jwt(credential: str) -> bool:
    return credential.startswith(JWT_PREFIX)


def jwt_claims(token: str) -> dict[str, Any]:
    """The payload of a JWT, unverified; empty when it cannot be read."""
    try:
        payload = token.split(".")[1]
        decoded = base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
        claims = json.loads(decoded)
    except (IndexError, ValueError, binascii.Error):
        return {}
    return claims if isinstance(claims, dict) else {}


class TokenSource:
    """The credentials of one client."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._exchange: Exchange | None = None
        self._command_only = False
        self._jwt: str | None = None
        self._expires = 0.0
        self._not_before = 0.0
        self._refreshing: asyncio.Task[None] | None = None

    @property
    def identity(self) -> str:
        """What tells this account from others, for the limiter: stable over token renewals."""
        config = self._config
        return config.api_key or config.credential_command or f"stored:{config.credentials_path}"

    @property
    def is_missing(self) -> bool:
        """Whether there is no credential at all, and requests carry a key of no meaning."""
        config = self._config
        given = config.api_key or config.credential_command
        return not (given or stored_key(config.credentials_path, config.base_url))

    async def raw(self) -> str:
        """The credential itself: a key given, printed by the command, or stored by a login."""
        key, command = self._config.api_key, self._config.credential_command
        if key is not None and (is_jwt(key) or not self._command_only):
            return key
        if command is not None:
            return await asyncio.to_thread(_run_command, command)
        if self._command_only:
            raise TinkerError(
                "This organisation requires dynamic credentials. Set TINKER_CREDENTIAL_CMD to a "
                "command that prints one."
            )
        return require_stored_key(self._config)

    def configure(self, *, exchange: Exchange | None, command_only: bool) -> None:
        """Apply what the server said about authentication; None keeps sending the raw key."""
        self._command_only = command_only
        key = self._config.api_key
        self._exchange = None if key is not None and is_jwt(key) else exchange
        if self._exchange is None and key is None and self._config.credential_command:
            raise TinkerError(
                "TINKER_CREDENTIAL_CMD is set, but this server does not exchange credentials for "
                "tokens. Set TINKER_API_KEY or pass api_key instead."
            )

    async def current(self) -> str:
        """The value for the next request's credential header."""
        if self._exchange is None:
            key = self._config.api_key
            return key if key is not None and not self._command_only else await self.raw()
        remaining = self._expires - time.time()
        if self._jwt is None or remaining <= self._config.timings.token_refresh_needed:
            await asyncio.shield(self._start_refresh())
        elif remaining <= self._config.timings.token_refresh_before:
            self._start_refresh()
        assert self._jwt is not None
        return self._jwt

    async def identity_jwt(self) -> str | None:
        """A JWT that says who the caller is, when there is one."""
        if self._exchange is not None:
            return await self.current()
        key = self._config.api_key
        if key is None or not is_jwt(key):
            return None
        return key if str(jwt_claims(key).get("iss", "")).startswith("passport-") else None

    async def aclose(self) -> None:
        if self._refreshing is not None and not self._refreshing.done():
            self._refreshing.cancel()
            await asyncio.wait([self._refreshing])

    def _start_refresh(self) -> asyncio.Task[None]:
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh(), name="tinkex-token")
            # A failure in the background is logged; whoever waits also gets it.
            self._refreshing.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._refreshing

    async def _refresh(self) -> None:
        if self._jwt is not None and time.monotonic() < self._not_before:
            return
        assert self._exchange is not None
        try:
            token = await self._exchange(await self.raw())
        except Exception as error:
            if self._jwt is None:
                raise
            self._not_before = time.monotonic() + self._config.timings.token_retry_delay
            logger.warning("token refresh failed, keeping the old one: %s", type(error).__name__)
            return
        expires = jwt_claims(token).get("exp")
        self._jwt = token
        self._expires = float(expires) if isinstance(expires, int | float) else 0.0


def require_stored_key(config: Config) -> str:
    """The key a login left behind, or an error that names the ways to provide one.

    A server on this machine gets a key of no meaning: unless it has keys of its own, any will do.
    """
    key = stored_key(config.credentials_path, config.base_url)
    if key is None and config.is_on_this_machine:
        return LOCAL_API_KEY
    if key is None:
        raise TinkerError(f"No API key for {config.base_url}. {ways_to_a_key(config)}")
    check_key(key, "stored credential")
    return key


def ways_to_a_key(config: Config) -> str:
    """What to do when there is no key for the address of a configuration."""
    option = "" if config.base_url == DEFAULT_BASE_URL else f" --base-url {config.base_url}"
    advice = f"Pass api_key=…, set TINKER_API_KEY, or log in with `tinkex auth login{option}`."
    elsewhere = Logins(config.credentials_path).addresses()
    return f"{advice} You are logged in at {', '.join(elsewhere)}." if elsewhere else advice


def _run_command(command: str) -> str:
    try:
        done = subprocess.run(
            command, shell=True, capture_output=True, text=True, timeout=COMMAND_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        raise TinkerError(
            f"The credential command did not finish within {COMMAND_TIMEOUT:.0f} s."
        ) from None
    if done.returncode != 0:
        raise TinkerError(f"The credential command failed with exit status {done.returncode}.")
    credential = done.stdout.strip()
    if not credential:
        raise TinkerError("The credential command printed nothing.")
    return credential
