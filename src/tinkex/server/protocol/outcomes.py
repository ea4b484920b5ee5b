"""The ends a promise can have, as the bytes clients read. A success never holds the key `error`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from tinkex.server.promises import Outcome

Category = Literal["user", "server", "unknown"]


def success(values: Mapping[str, Any]) -> Outcome:
    """A JSON result."""
    assert "error" not in values, "clients read any `error` key as a failure"
    return Outcome("json", json.dumps(values, separators=(",", ":"), allow_nan=False).encode())


def failure(category: Category, message: str) -> Outcome:
    """A failed future: `user` mistakes say how to fix them, `server` faults are ours."""
    body = json.dumps({"error": message, "category": category}, separators=(",", ":"))
    return Outcome("json", body.encode(), failed=True)


def told(failed: Outcome) -> str:
    """The sentence of a failure, for people: what clients get is JSON."""
    said = json.loads(failed.body).get("error")
    return said if isinstance(said, str) else failed.body.decode(errors="replace")
