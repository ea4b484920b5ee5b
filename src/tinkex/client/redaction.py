"""Removing secrets from what leaves the caller's hands: reprs, logs, events, telemetry, errors.

Knows what a credential looks like on this API (keys, JWTs, Cloudflare secrets, signed URLs)
and nothing about where the text is going.
"""

import re
from collections.abc import Mapping

from tinkex.wire.limits import (
    API_KEY_PREFIX,
    HEADER_API_KEY,
    HEADER_WEIGHTS_ACCESS_TOKEN,
    JWT_PREFIX,
)

REDACTED = "[redacted]"

SECRET_HEADERS = frozenset(
    {
        "authorization",
        "cf-access-client-id",
        "cf-access-client-secret",
        "cookie",
        "proxy-authorization",
        "set-cookie",
        HEADER_API_KEY.lower(),
        HEADER_WEIGHTS_ACCESS_TOKEN.lower(),
    }
)

_SECRET_TEXT = re.compile(
    rf"{API_KEY_PREFIX}[A-Za-z0-9_\-.]+"  # API keys
    rf"|{JWT_PREFIX}[A-Za-z0-9_\-]+\.[A-Za-z0-9_\-]+(?:\.[A-Za-z0-9_\-]*)?"  # JWTs
    r"|(?<=://)[^/\s@:]+:[^/\s@]+(?=@)"  # user:password in a URL
    r"|(?<=[?&])(?:X-Amz-Signature|X-Goog-Signature|Signature|sig|token)=[^&\s]+",
    re.IGNORECASE,
)


def redact_text(text: str) -> str:
    """The same text with every key, JWT, URL password and URL signature replaced."""
    return _SECRET_TEXT.sub(REDACTED, text)


def redact_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """A copy safe to show: secret headers lose their value, other values are scrubbed."""
    return {
        name: REDACTED if name.lower() in SECRET_HEADERS else redact_text(value)
        for name, value in headers.items()
    }


def redact(value: object) -> object:
    """Scrub strings anywhere inside dicts, lists and tuples; other values pass unchanged."""
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Mapping):
        return {
            str(key): REDACTED if str(key).lower() in SECRET_HEADERS else redact(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [redact(item) for item in value]
    return value
