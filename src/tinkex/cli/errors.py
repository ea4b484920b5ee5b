"""Maps an exception to what the person reads: message, details and the next command to type.

One map for all commands. The SDK's errors are looked up by their class name along the class
hierarchy, so explaining an error imports nothing.
"""

from __future__ import annotations

import errno
import re
from typing import Any

from tinkex.cli.reasons import reason


class CliError(Exception):
    """A failure that is explained already.

    `message` is the headline, `details` what is known about it, `next_step` what to type now.
    `status` is the server's, where it answered with one.
    """

    status: int | None = None

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

    @property
    def said(self) -> list[str]:
        """The headline and the details."""
        return [f"Error: {self.message}", *([self.details] if self.details else [])]

    def to_dict(self) -> dict[str, Any]:
        """The same for programs."""
        details = self.details.removeprefix("Details: ") if self.details else None
        return {
            "error": {
                "message": self.message,
                "details": details,
                "next_step": self.next_step,
                "status_code": self.status,
                "exit_code": self.exit_code,
            }
        }

    def keeping(self, flags: str) -> CliError:
        """The same, with the connection flags of this line in every command it suggests."""
        if self.next_step and flags:
            networked = _NETWORKED if flags == "--local" else _NETWORKED_OR_LOGIN
            self.next_step = networked.sub(lambda found: f"{found[0]} {flags}", self.next_step)
        return self


_NETWORKED = re.compile(r"\btinkex (?:(?:run|checkpoint|session|billing) [a-z-]+|model list)")
_NETWORKED_OR_LOGIN = re.compile(rf"{_NETWORKED.pattern}|\btinkex auth [a-z]+(?! --base-url)\b")
_RETRY = "This may pass: try again in a moment."
_CHANGE = "Change what the message names and run it again."
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
    "BadRequestError": ("Invalid request", _CHANGE),
    "UnprocessableEntityError": ("Invalid data provided", _CHANGE),
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
    "ConflictError": (
        "API error (status {status})",
        "It is not in a state that allows this: look at it first. Next: tinkex run list",
    ),
    "APIStatusError": ("API error (status {status})", None),
    "APIError": ("API error occurred", _RETRY),
}
_BY_STATUS = {
    408: _RETRY,
    410: "It has ended or expired. Next: tinkex run list, or tinkex checkpoint list",
    413: "Send less at once.",
}


_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_FAILED_WORK = ("RequestFailedError", "FutureRetrievalError", "RetryableException")
_EMBEDDED = (
    "FleetProblem",
    "HomeTaken",
    "ModelNotFound",
    "WrongRows",
)  # errors of the server floor, in words of its own


def explain(error: Exception, address: str | None = None) -> CliError:
    """The explained form of any exception a command let through."""
    if isinstance(error, CliError):
        return error
    for met in (error, error.__cause__):
        if type(met).__name__ in _EMBEDDED:
            return _no_embedded_server(met)
        if isinstance(met, UnicodeEncodeError):  # of what is sent: terminals take everything
            return not_text()
    for kind in type(error).__mro__:
        if kind.__name__ in _KNOWN:
            headline, next_step = _KNOWN[kind.__name__]
            status = getattr(error, "status_code", None)
            headline = headline.format(status=status or "unknown")
            advice = next_step or _BY_STATUS.get(status or 0, _CHANGE)
            explained = CliError(headline, _details(error, address), advice)
            explained.status = status
            return explained
    if type(error).__name__ in _FAILED_WORK:
        return _failed_request(error)
    if isinstance(error, TimeoutError):
        return CliError("Request timeout", _details(error, address), f"{_RETRY} Or: --timeout 5m")
    if type(error).__name__ == "TokenizerError":
        return CliError(reason(error))
    if any(kind.__name__ == "TinkerError" for kind in type(error).__mro__):
        next_step = _CHECK_KEY if "key" in str(error) else None
        return CliError(f"Configuration error: {reason(error)}", None, next_step)
    if isinstance(error, OSError) and error.errno in _DISK_FULL:
        where = error.filename or "what was to be written"
        return CliError(f"No space left on the disk for {where}", None, "Next: tinkex home du")
    if isinstance(error, OSError) and error.filename is not None:
        return CliError(f"Could not use {error.filename}: {error.strerror}")
    return CliError(f"Unexpected error occurred: {reason(error)}", None, "More: add --verbose")


def check_text(typed: str) -> None:
    """Raises for bytes that are no UTF-8: what was typed or piped has them as half characters."""
    try:
        typed.encode()
    except UnicodeEncodeError as error:
        raise not_text() from error


def not_text() -> CliError:
    """Why bytes that are no UTF-8 go nowhere."""
    return CliError("What was given is not UTF-8 text", None, "Convert it first: iconv -t UTF-8")


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
    if isinstance(error.__cause__, OSError) and error.__cause__.errno in _DISK_FULL:
        return error  # of the server in this process: to try again changes nothing
    if isinstance(error, TimeoutError):
        return CliError(waited, None, "A longer wait: --timeout 5m")
    explains_itself = "APIConnectionError" in names or "TokenizerError" in names
    if explains_itself or "TinkerError" not in names:
        return error
    if is_user_error(error):
        return CliError(f"{work} failed. Please check your inputs: {reason(error)}")
    advice = " Consider retrying" if work == "Sampling" else ""
    between = f".{advice}: " if advice else ": "
    return CliError(f"{work} failed due to server or transient error{between}{reason(error)}")


def _failed_request(error: Exception) -> CliError:
    advice = _CHANGE if is_user_error(error) else _RETRY
    return CliError("The server could not complete the request", _details(error, None), advice)


def _no_embedded_server(error: object) -> CliError:
    there = re.search(r"https?://\S+", str(error))
    address = reachable(there[0]) if there else None
    advice = f"Use that server: --base-url {address} instead of --local" if address else None
    return CliError(f"The server embedded in tinkex cannot start: {reason(error)}", None, advice)


def reachable(address: str) -> str:
    """An address to type: one that means all of a machine's own is no place to connect to."""
    return address.replace("//0.0.0.0", "//127.0.0.1").replace("//[::]", "//[::1]")


def _details(error: Exception, address: str | None) -> str:
    text = f"Details: {reason(error)}"
    is_connection = any(kind.__name__ == "APIConnectionError" for kind in type(error).__mro__)
    if is_connection and address and "://" not in text:
        text += f" (tried {address})"
    return text
