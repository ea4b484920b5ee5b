"""What went wrong, in one line a person can read: no dictionaries, no chains of a library's causes.

Works on the SDK's errors by their attributes, so it imports nothing.
"""

from __future__ import annotations

import re

_LONGEST = 400
_MOST_PROBLEMS = 3

# What the HTTP library says deep in a chain of causes -> what it means for who typed the address.
_CONNECTION = (
    ("dns error", "the host name is not known"),
    ("Connection refused", "connection refused"),
    ("InvalidContentType", "the server does not speak TLS there: try http://"),
    ("invalid HTTP version", "what answers there is no HTTP server"),
    ("UnknownIssuer", "the server's certificate is not trusted here"),
    ("operation timed out", "no answer in time"),
)


def reason(error: object) -> str:
    """The reason an error gives, without its wrapping."""
    said = _said_by_server(getattr(error, "body", None))
    text = said or _without_chain(str(error))
    nothing = "it took longer than allowed" if isinstance(error, TimeoutError) else ""
    text = " ".join(text.split()) or nothing or type(error).__name__
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)  # a server's words
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _said_by_server(body: object) -> str:
    """The sentence in an error's body, whichever of the usual shapes it has; empty if none."""
    if isinstance(body, str):
        return re.sub(r"<[^>]*>", " ", body)  # a proxy's page
    if isinstance(body, list):
        problems = [_said_by_server(item) for item in body]
        return "; ".join([text for text in problems if text][:_MOST_PROBLEMS])
    if not isinstance(body, dict):
        return ""
    if isinstance(body.get("msg"), str):
        place = ".".join(str(part) for part in body.get("loc", ()) if part != "body")
        return f"{place}: {body['msg']}" if place else body["msg"]
    found = (_said_by_server(body.get(key)) for key in ("detail", "message", "error", "errors"))
    return next((text for text in found if text), "")


def _without_chain(text: str) -> str:
    text = text.removeprefix("Connection error: ").removeprefix("Request failed: ")
    if "error sending request" not in text:
        return re.sub(r"^Error code: (\d+) - .*", r"the server answered \1", text)
    for sign, meaning in _CONNECTION:
        if sign in text:
            return meaning
    last = re.split(r"client error \(\w+\): ", text)[-1].split(": ")[-1]
    return re.sub(r" \(os error \d+\)$", "", last)
