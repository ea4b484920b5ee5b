"""From an exception to what the person reads: message, details and the next thing to type.

One map for all commands. The SDK's errors are looked up by their class name along the class
hierarchy, so explaining an error imports nothing.
"""

from __future__ import annotations

import re
from typing import TextIO


class CliError(Exception):
    """A failure that is explained already.

    `message` is the headline, `details` what is known about it, `next_step` what to type now.
    """

    def __init__(
        self,
        message: str,
        details: str | None = None,
        next_step: str | None = None,
        exit_code: int = 1,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.details = details
        self.next_step = next_step
        self.exit_code = exit_code

    def write(self, stream: TextIO) -> None:
        """Prints the headline, the details and the next step, one line each."""
        lines = [f"Error: {self.message}", self.details, self.next_step]
        stream.writelines(f"{line}\n" for line in lines if line)


_RETRY = "This may pass: try again in a moment."
_CHECK_KEY = (
    "Check the key. Next: tinkex auth login, or set TINKER_API_KEY, "
    "or add --local to use this machine."
)

# (class name, headline, next step); the first class of an error's hierarchy found here wins.
_KNOWN: dict[str, tuple[str, str | None]] = {
    "NotFoundError": (
        "Resource not found",
        "Check the id. Next: tinkex run list, or tinkex checkpoint list",
    ),
    "AuthenticationError": ("Authentication failed", _CHECK_KEY),
    "BillingError": ("Billing issue", "Set up billing in the console of your organization."),
    "PermissionDeniedError": (
        "Permission denied",
        "Ask the owner for access. See who you are: tinkex auth whoami",
    ),
    "BadRequestError": ("Invalid request", "Change what the message names and run it again."),
    "UnprocessableEntityError": (
        "Invalid data provided",
        "Change what the message names and run it again.",
    ),
    "RateLimitError": ("Rate limit exceeded", "Wait a little, then run it again."),
    "InternalServerError": ("Internal server error", _RETRY),
    "APITimeoutError": (
        "Request timeout",
        f"{_RETRY} A longer wait: --timeout 2m",
    ),
    "APIConnectionError": (
        "Connection failed",
        "Check the address and the network. No server? Next: tinkex serve, or add --local",
    ),
    "APIStatusError": ("API error (status {status})", None),
    "APIError": ("API error occurred", None),
}


_EMBEDDED = ("HomeTaken", "ModelNotFound")  # errors of the server floor, in words of its own


def explain(error: Exception, address: str | None = None) -> CliError:
    """The explained form of any exception a command let through."""
    if isinstance(error, CliError):
        return error
    for met in (error, error.__cause__):
        if type(met).__name__ in _EMBEDDED:
            return _no_embedded_server(met)
    for kind in type(error).__mro__:
        if kind.__name__ in _KNOWN:
            headline, next_step = _KNOWN[kind.__name__]
            headline = headline.format(status=getattr(error, "status_code", "unknown"))
            return CliError(headline, _details(error, address), next_step)
    if type(error).__name__ == "RequestFailedError":
        return _failed_request(error)
    if isinstance(error, TimeoutError):
        return CliError("Request timeout", _details(error, address), f"{_RETRY} Or: --timeout 5m")
    if type(error).__name__ == "TokenizerError":
        return CliError(_text(error))
    if any(kind.__name__ == "TinkerError" for kind in type(error).__mro__):
        next_step = _CHECK_KEY if "key" in str(error) else None
        return CliError(f"Configuration error: {_text(error)}", None, next_step)
    if isinstance(error, OSError) and error.filename is not None:
        return CliError(f"Could not use {error.filename}: {error.strerror}")
    return CliError(f"Unexpected error occurred: {_text(error)}", None, "More: add --verbose")


def is_user_error(error: Exception) -> bool:
    """Whether the person has to change something; otherwise a retry may help."""
    known = getattr(error, "is_user_error", None)
    if callable(known):
        known = known()
    if isinstance(known, bool):
        return known
    status = getattr(error, "status_code", None)
    return isinstance(status, int) and 400 <= status < 500 and status not in (408, 429)


_ABOUT_ACCESS = ("AuthenticationError", "BillingError", "PermissionDeniedError", "NotFoundError")


def explain_work(error: Exception, work: str, waited: str) -> Exception:
    """The explained form of an error met while the server did some `work` ("Sampling").

    Problems of access and connection explain themselves; `waited` is said when time ran out.
    """
    names = [kind.__name__ for kind in type(error).__mro__]
    if isinstance(error, CliError) or any(name in names for name in _ABOUT_ACCESS):
        return error
    if isinstance(error, TimeoutError):
        return CliError(waited, None, "A longer wait: --timeout 5m")
    explains_itself = "APIConnectionError" in names or "TokenizerError" in names
    if explains_itself or "TinkerError" not in names:
        return error
    if is_user_error(error):
        return CliError(f"{work} failed. Please check your inputs: {_text(error)}")
    advice = " Consider retrying" if work == "Sampling" else ""
    between = f".{advice}: " if advice else ": "
    return CliError(f"{work} failed due to server or transient error{between}{_text(error)}")


def _failed_request(error: Exception) -> CliError:
    category = str(getattr(error, "category", ""))
    advice = "Change what the message names and run it again." if "user" in category else _RETRY
    return CliError("The server could not complete the request", _details(error, None), advice)


def _no_embedded_server(error: object) -> CliError:
    there = re.search(r"https?://\S+", str(error))
    advice = f"Use that server: --base-url {there[0]} instead of --local" if there else None
    return CliError(f"The server embedded in tinkex cannot start: {_text(error)}", None, advice)


def _details(error: Exception, address: str | None) -> str:
    text = f"Details: {_text(error)}"
    is_connection = any(kind.__name__ == "APIConnectionError" for kind in type(error).__mro__)
    if is_connection and address and "://" not in text:
        text += f" (tried {address})"
    return text


def _text(error: object) -> str:
    return " ".join(str(error).split()) or type(error).__name__
