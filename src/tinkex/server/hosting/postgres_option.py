"""An option whose value is the address of a PostgreSQL: checked before anything is opened."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

_SCHEMES = ("postgresql://", "postgres://")


def check_postgres(option: str, address: str, refuse: Callable[[str], Exception]) -> None:
    """Raises what `refuse` makes of the reason, which has nothing of the address but its scheme:
    addresses hold passwords."""
    if not address.startswith(_SCHEMES):
        scheme, is_address, _ = address.partition("://")
        given = f", not {scheme[:40]}://…" if is_address else ""
        raise refuse(f"{option} must be postgresql://USER@HOST/DATABASE{given}")
    if find_spec("psycopg") is None:
        raise refuse(f"{option} needs psycopg: pip install 'tinkex[postgres]'")
    from tinkex.server.storage.database.postgres.address import problem_of

    if problem := problem_of(address):
        raise refuse(f"{option} cannot be read: {problem}")
