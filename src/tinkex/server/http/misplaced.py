"""Paths of the Tinker API behind a prefix: the client was given too long a base URL."""

from __future__ import annotations

from collections.abc import Container

from tinkex.wire.routes import API_PREFIX


def misplaced(path: str, served: Container[str]) -> str | None:
    """What to mend, if `path` would be served without what is in front of it."""
    extra, _, rest = path.rpartition(f"{API_PREFIX}/")
    meant = f"{API_PREFIX}/{rest}"
    if not extra or meant not in served:
        return None
    return (
        f"{path[:200]} is not served here, but {meant} is: leave {extra[:100]} out of the base "
        f"URL, this client adds {API_PREFIX}"
    )
