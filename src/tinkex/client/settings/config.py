"""What a client needs to know before its first request, as one explicit value.

This is the only module of the SDK that reads the environment. Precedence everywhere: the caller's
value, then ``TINKEX_*``, then ``TINKER_*``, then (for address and key) stored logins, then the
default. Two configurations never share state, except that equal (URL, key) pairs share a rate
limiter, because the server counts them together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypedDict, cast
from urllib.parse import urlsplit, urlunsplit

from tinkex.client.errors import TinkerError
from tinkex.client.events.bus import EventBus, default_bus
from tinkex.client.settings.timings import Timings
from tinkex.text import hub_cache
from tinkex.wire.limits import (
    API_KEY_PREFIX,
    CONNECT_TIMEOUT,
    HOSTED_URL,
    KEY_PREFIXES,
    LOCAL_API_KEY,
    REQUEST_TIMEOUT,
)

if TYPE_CHECKING:
    from tinkex.client.http import Transport
    from tinkex.client.settings.breaker import BreakerConfig
    from tinkex.client.settings.queue_state import QueueStateObserver

DEFAULT_BASE_URL = HOSTED_URL
DEFAULT_HUB_URL = "https://huggingface.co"
LOCAL_BASE_URL = "local"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
MAX_RESPONSE_BYTES = 4 * 1024**3

_TRUE = frozenset({"1", "true", "yes", "on"})


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"


UNSET = _Unset()


class Timeout:
    """Seconds to wait for each part of a request; None waits for ever.

    ``Timeout(60.0, connect=5.0)`` sets all four parts and then one of them. Every part must end
    up set: give a default, or all of ``connect``, ``read``, ``write`` and ``pool``.
    """

    def __init__(
        self,
        timeout: Timeout | tuple[float | None, ...] | float | _Unset | None = UNSET,
        *,
        connect: float | _Unset | None = UNSET,
        read: float | _Unset | None = UNSET,
        write: float | _Unset | None = UNSET,
        pool: float | _Unset | None = UNSET,
    ) -> None:
        base = _timeout_parts(timeout)
        given = {"connect": connect, "read": read, "write": write, "pool": pool}
        parts = {
            name: base[name] if isinstance(value, _Unset) else value
            for name, value in given.items()
        }
        missing = [name for name, value in parts.items() if isinstance(value, _Unset)]
        if missing:
            raise ValueError(
                "Timeout needs a default or all four of connect, read, write and pool; "
                f"not set: {', '.join(missing)}"
            )
        whole = cast("dict[str, float | None]", parts)
        self.connect, self.read = whole["connect"], whole["read"]
        self.write, self.pool = whole["write"], whole["pool"]

    def as_dict(self) -> dict[str, float | None]:
        """The four parts by name."""
        return {
            "connect": self.connect,
            "read": self.read,
            "write": self.write,
            "pool": self.pool,
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Timeout) and self.as_dict() == other.as_dict()

    def __hash__(self) -> int:
        return hash(tuple(self.as_dict().values()))

    def __repr__(self) -> str:
        values = set(self.as_dict().values())
        if len(values) == 1:
            return f"Timeout(timeout={values.pop()})"
        return f"Timeout({', '.join(f'{k}={v}' for k, v in self.as_dict().items())})"


def _timeout_parts(
    timeout: Timeout | tuple[float | None, ...] | float | _Unset | None,
) -> dict[str, float | _Unset | None]:
    names = ("connect", "read", "write", "pool")
    if isinstance(timeout, Timeout):
        return dict(timeout.as_dict())
    if isinstance(timeout, tuple):
        padded = (*timeout, None, None, None, None)[:4]
        return dict(zip(names, padded, strict=True))
    return dict.fromkeys(names, timeout)


class RequestOptions(TypedDict, total=False):
    """Per-request options, all optional."""

    headers: Mapping[str, str]
    max_retries: int
    timeout: float | Timeout | None
    params: Mapping[str, object]
    extra_json: Mapping[str, object]
    idempotency_key: str
    follow_redirects: bool


@dataclass(frozen=True)
class Config:
    """Everything a client is told; make one with ``Config.resolve``.

    Credentials never appear in ``repr``.
    """

    base_url: str = DEFAULT_BASE_URL  # of the server; `local` for the embedded one
    # sent with every request, unless a command or a login gives one
    api_key: str | None = field(default=None, repr=False)
    # a command that prints a key or token
    credential_command: str | None = field(default=None, repr=False)
    credentials_path: Path | None = None  # the file of logins; None: the usual place
    project_id: str | None = None  # what sessions are booked under
    tags: frozenset[str] = frozenset()  # of every session
    feature_gates: frozenset[str] = frozenset({"async_sampling"})  # asked for in every session
    telemetry: bool = True  # whether the client reports its errors to its server
    # sent with every request
    headers: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType({}), repr=False, hash=False
    )
    proxy: str | None = field(default=None, repr=False)  # for requests to the server
    no_proxy: str | None = None  # hosts that are reached without it
    # of single requests
    timeout: Timeout = field(
        default_factory=lambda: Timeout(REQUEST_TIMEOUT, connect=CONNECT_TIMEOUT)
    )
    timings: Timings = field(default_factory=Timings)  # retries, polls, heartbeats
    max_response_bytes: int = MAX_RESPONSE_BYTES  # of one answer
    # stops calls to a server that keeps failing; None: no breaker
    breaker: BreakerConfig | None = None
    trace_context: Callable[[], str | None] | None = None  # gives a `traceparent` for each request
    # where the client's events go
    events: EventBus = field(default=default_bus, repr=False, compare=False)
    # told when and why work waits
    queue_state_observer: QueueStateObserver | None = field(default=None, repr=False, compare=False)
    # makes the transport, in place of the usual one
    transport: Callable[[Config], Transport] | None = field(default=None, repr=False)
    cache_directory: Path | None = None  # for tokenizers; None: the usual place
    hub_url: str = DEFAULT_HUB_URL  # the Hugging Face Hub's
    hub_token: str | None = field(default=None, repr=False)  # for the Hub
    offline: bool = False  # whether the Hub is never asked

    @property
    def is_local(self) -> bool:
        """Whether the server is the one embedded in this process."""
        return self.base_url == LOCAL_BASE_URL

    @property
    def is_on_this_machine(self) -> bool:
        """Whether the server answers on loopback, where a `tinkex serve` takes any key."""
        return self.is_local or urlsplit(self.base_url).hostname in LOOPBACK

    @classmethod
    def resolve(
        cls,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        environ: Mapping[str, str] | None = None,
        **overrides: Any,
    ) -> Config:
        """The caller's values over the environment over the defaults, checked.

        ``environ`` replaces the process environment. Raises ``ValueError`` for a URL without a
        scheme and ``TinkerError`` for a key that cannot be one.
        """
        env = _Environment(os.environ if environ is None else environ)
        command = env.get("CREDENTIAL_CMD")
        known = api_key or env.get("API_KEY") or command
        path = Path(file) if (file := env.get("CREDENTIALS_FILE")) else None
        url = normalise_url(base_url or env.get("BASE_URL") or _default_url(bool(known), path))
        values: dict[str, Any] = {
            "api_key": _choose_key(api_key, env.get("API_KEY"), command, url),
            "credential_command": command,
            "credentials_path": path,
            "project_id": env.get("PROJECT_ID"),
            "tags": frozenset(tags.split(",")) if (tags := env.get("TAGS")) else frozenset(),
            "feature_gates": frozenset((env.get("FEATURE_GATES") or "async_sampling").split(",")),
            "telemetry": (env.get("TELEMETRY") or "1").lower() in _TRUE,
            "headers": _cloudflare_headers(env),
            "proxy": env.proxy(url),
            "no_proxy": env.plain("NO_PROXY"),
            "cache_directory": Path(folder) if (folder := env.get("CACHE")) else None,
            "hub_url": (env.plain("HF_ENDPOINT") or DEFAULT_HUB_URL).rstrip("/"),
            "hub_token": env.plain("HF_TOKEN"),
            "offline": (env.get("OFFLINE") or env.plain("HF_HUB_OFFLINE") or "").lower() in _TRUE,
        }
        given = {name: value for name, value in overrides.items() if value is not None}
        if "headers" in given:
            given["headers"] = MappingProxyType({**values["headers"], **given["headers"]})
        return cls(base_url=url, **{**values, **given})

    @classmethod
    def settings(cls) -> frozenset[str]:
        """The names of what can be set beside address, key and headers."""
        names = frozenset(each.name for each in fields(cls))
        return names - {"base_url", "api_key", "headers"}

    def with_key(self, api_key: str) -> Config:
        """The same configuration speaking for another account."""
        check_key(api_key, "api_key")
        return replace(self, api_key=api_key, credential_command=None)


class _Environment:
    """Looks names up as TINKEX_x, then TINKER_x; an empty value counts as unset."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def get(self, name: str) -> str | None:
        return self._environ.get(f"TINKEX_{name}") or self._environ.get(f"TINKER_{name}") or None

    def plain(self, name: str) -> str | None:
        return self._environ.get(name) or self._environ.get(name.lower()) or None

    def proxy(self, url: str) -> str | None:
        scheme = urlsplit(url).scheme.upper()
        return (
            self.get("PROXY") or (scheme and self.plain(f"{scheme}_PROXY")) or None
        ) or self.plain("ALL_PROXY")


def log_level_from_environment(environ: Mapping[str, str] | None = None) -> str | None:
    """``debug`` or ``info`` when the user asked for SDK logs, else None."""
    value = _Environment(os.environ if environ is None else environ).get("LOG")
    return value if value in ("debug", "info") else None


def user_cache_directory(environ: Mapping[str, str] | None = None) -> Path:
    """Where this user's caches live when a configuration names no directory."""
    return hub_cache.own_cache_directory(os.environ if environ is None else environ)


def hub_cache_directory(environ: Mapping[str, str] | None = None) -> Path:
    """Where the Hugging Face libraries keep downloaded files."""
    return hub_cache.hub_cache_directory(os.environ if environ is None else environ)


def normalise_url(base_url: str) -> str:
    """The URL without a trailing slash, its scheme and host in lower case; "local" stays itself."""
    if base_url == LOCAL_BASE_URL:
        return base_url
    parts = urlsplit(base_url)
    if parts.scheme.lower() not in ("http", "https") or not parts.netloc:
        raise ValueError(
            f"base_url: expected http://…, https://… or {LOCAL_BASE_URL!r}, got "
            f"{_shorten(base_url)!r}. {_address_advice(base_url)}"
        )
    return urlunsplit(
        (parts.scheme.lower(), parts.netloc.lower(), parts.path.rstrip("/"), parts.query, "")
    )


def _default_url(has_key: bool, credentials_path: Path | None) -> str:
    """The address of the latest login. A key from elsewhere is for the hosted service: it must
    not go where somebody once logged in with another."""
    if has_key:
        return DEFAULT_BASE_URL
    from tinkex.client.settings.logins import Logins

    return Logins(credentials_path).default_address


def _address_advice(base_url: str) -> str:
    host, _, port = base_url.partition("/")[0].rpartition(":")
    if host and port.isdigit():
        return f"Did you mean http://{_shorten(base_url)}?"
    return "Write the scheme and the host, for example https://example.com."


def check_key(key: str, name: str) -> None:
    """Refuse a key that cannot be one before it reaches any header. Never shows the key."""
    if not key.startswith(KEY_PREFIXES):
        raise TinkerError(
            f"{name}: the API key must start with the `{API_KEY_PREFIX}` prefix (or be a JWT); got "
            f"{len(key)} characters that do not. Copy the key again from the console."
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        raise TinkerError(
            f"{name}: the API key contains spaces or characters a header cannot carry. "
            "Copy the key again, without line breaks."
        )


def _choose_key(
    given: str | None, from_environment: str | None, command: str | None, url: str
) -> str | None:
    if given:
        check_key(given, "api_key")
        return given
    if from_environment:
        try:
            check_key(from_environment, "TINKER_API_KEY")
        except TinkerError:
            if command:
                return None  # the command is the documented way out of a bad static key
            raise
        return from_environment
    return LOCAL_API_KEY if url == LOCAL_BASE_URL and not command else None


def _cloudflare_headers(env: _Environment) -> Mapping[str, str]:
    pairs = {
        "CF-Access-Client-Id": env.plain("CLOUDFLARE_ACCESS_CLIENT_ID"),
        "CF-Access-Client-Secret": env.plain("CLOUDFLARE_ACCESS_CLIENT_SECRET"),
    }
    return MappingProxyType({name: value for name, value in pairs.items() if value})


def _shorten(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
