"""Asks a server about an API key, with nothing but that key: for logging in and out.

Plain HTTP, one request, no retries: the key is not configured yet, or about to be forgotten.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

from tinkex.cli.errors import CliError
from tinkex.wire.limits import HEADER_API_KEY
from tinkex.wire.routes import API_KEY_ME

_TIMEOUT_SECONDS = 30.0


class KeyService(Protocol):
    """What login and logout need of a server. Both methods raise `CliError`."""

    def describe(self, key: str) -> dict[str, Any]: ...
    def delete(self, key: str) -> None: ...


class HttpKeyService:
    """The key service of the server at `base_url`."""

    def __init__(self, base_url: str) -> None:
        self._url = base_url.rstrip("/") + API_KEY_ME

    def describe(self, key: str) -> dict[str, Any]:
        """The server's record of the key: `key_id`, `name`, `note`, `details`."""
        try:
            record = json.loads(self._request("GET", key))
        except ValueError:
            record = None
        if not isinstance(record, dict) or "key_id" not in record:
            raise CliError(f"The server's answer about the key makes no sense (from {self._url})")
        return record

    def delete(self, key: str) -> None:
        """Revokes the key."""
        self._request("DELETE", key)

    def _request(self, method: str, key: str) -> bytes:
        import urllib.error
        import urllib.request

        class StaysHere(urllib.request.HTTPRedirectHandler):
            """The key is for this server: a redirect is an error."""

            def redirect_request(self, *_: object) -> None:
                return None

        request = urllib.request.Request(self._url, method=method, headers={HEADER_API_KEY: key})
        opener = urllib.request.build_opener(StaysHere)
        try:
            with opener.open(request, timeout=_TIMEOUT_SECONDS) as response:
                content: bytes = response.read()
                return content
        except urllib.error.HTTPError as error:
            with error:
                detail = _detail(error.read())
            if target := error.headers.get("location"):
                raise CliError(
                    f"{self._url} redirects to {target}. The key was not sent there: if you trust "
                    "that server, give its address with --base-url"
                ) from None
            raise CliError(f"{detail} (HTTP {error.code} from {API_KEY_ME})") from None
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise CliError(f"Could not reach {self._url}: {reason}") from error


def _detail(body: bytes) -> str:
    try:
        return str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        return "The server refused"
