"""Paths close to those that are served: refused in the API's own form, with the fix.

Clients put their paths behind a base URL, and some of them add `/v1`. The refusal says whether it
was one `/v1` too few or too many.
"""

from __future__ import annotations

import re

from starlette.responses import Response

from tinkex.server.endpoints.errors import Unserved, anthropic_refused, openai_refused
from tinkex.server.endpoints.routes import ANTHROPIC, OPENAI, ROUTES

_BASES = sorted({*OPENAI, *ANTHROPIC}, key=len, reverse=True)
_SERVED = {route.path for route in ROUTES}
_MENDS = (
    (re.compile(r"/{2,}"), "/", "end the client's base URL without a slash"),
    (re.compile(r"(/v1){2,}(?=/)"), "/v1", "leave /v1 out of the base URL, this client adds it"),
    (re.compile(r"^/"), "/v1/", "end the client's base URL in /v1"),
)


def unserved(method: str, path: str, status: int) -> Response | None:
    """The answer to what is not served below a base address that clients of these APIs are given,
    or would be below another; None for any other path."""
    base = next((each for each in _BASES if path.startswith(f"{each}/")), None)
    mended = _mended(path) if status == 404 else None
    if mended is not None:
        meant, rest = mended
    elif base is not None:
        known = {path.removeprefix(f"{base}/") for path in _SERVED if path.startswith(base)}
        meant, rest = base, f"; below {base} there are: {', '.join(sorted(known))}"
    else:
        return None
    refusal = Unserved(status, f"{method} {path[:200]} is not served here{rest}")
    ours = "anthropic" in meant or meant.endswith("/messages")
    return anthropic_refused(refusal) if ours else openai_refused(refusal)


def _mended(path: str) -> tuple[str, str] | None:
    """The path that was meant, if its base URL was wrong, and how to right it."""
    for wrong, right, mend in _MENDS:
        meant = wrong.sub(right, path)
        if meant != path and meant in _SERVED:
            return meant, f", but {meant} is: {mend}"
    return None
