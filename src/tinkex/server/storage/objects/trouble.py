"""What is wrong with an object store, in words for whoever has to fix it."""

from __future__ import annotations

import re
from typing import Any

_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"status code: (\d{3}[\w ]*)")
_AND_SETTINGS = re.compile(r", max_retries: \d+, retry_timeout: [\w.]+")
"""What obstore adds to the number of its tries."""
_REQUEST = re.compile(
    r"Generic \w+ error: Error performing (\w+) (\w+://[^/\s]+)\S* in [\d.]+\w+"
    r"(?:, after \d+ retries)? - (?:HTTP error: )?"
)
"""What stands before the reason: a key that says nothing to a reader, and times that differ with
each try."""
_ROLE = "169.254.169.254"
"""Where cloud machines find their own credentials."""
_CREDENTIALS = "the credentials in its environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, …)"


def short(error: BaseException) -> str:
    """The store's own words, on one line."""
    words = " ".join(str(error).partition("Debug source:")[0].split())
    if code := _CODE.search(words):
        status = _STATUS.search(words)
        return f"{status[1]}, {code[1]}" if status else code[1]
    words = _AND_SETTINGS.sub("", words)
    if request := _REQUEST.match(words):
        words = f"{words[request.end() :]} ({request[1]} to {request[2]})"
    return words[:300] or type(error).__name__


def in_words(error: BaseException, kinds: Any) -> str:
    """Why something was not done; `kinds` are obstore's exceptions."""
    if isinstance(error, kinds.PermissionDeniedError | kinds.UnauthenticatedError):
        return f"the object store refuses: {short(error)}; check {_CREDENTIALS}"
    if _ROLE in str(error):
        return (
            "the object store cannot be asked: there are no credentials, and this machine has no "
            f"role of its own; give {_CREDENTIALS}"
        )
    return f"the object store does not answer: {short(error)}"


def emptied(missing: str, witness: str) -> str:
    """That nothing is there any more, as far as can be told."""
    return (
        f"the object store does not answer as itself: {missing}, nor is there its {witness}; check "
        "its bucket, endpoint or mount"
    )


def unanswered(seconds: float | None) -> str | None:
    """That a request has waited so long; None if it was not too long."""
    if seconds is None:
        return None
    return f"the object store does not answer: a request has waited for {seconds:.0f} s"
