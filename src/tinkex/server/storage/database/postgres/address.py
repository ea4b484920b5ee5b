"""What can be told of a database's address before anybody connects."""

from __future__ import annotations

import re

import psycopg
from psycopg.conninfo import conninfo_to_dict

_WRITTEN = "in user and password, special characters are written as %40 and the like"


def problem_of(address: str) -> str:
    """Why nobody should wait for a database behind it, with nothing of a password; else empty."""
    if _has_bare_at(address):
        return f"it has an @ too many ({_WRITTEN})"
    try:
        ports = str(conninfo_to_dict(address).get("port") or "5432").split(",")
    except psycopg.ProgrammingError as error:
        said = re.sub(r'"[^"]*"?', '"…"', str(error).strip())
        return f"{said} ({_WRITTEN})"
    wrong = [port for port in ports if port and not (port.isdecimal() and int(port) < 1 << 16)]
    return f"port {wrong[0]!r} is no number from 1 to 65535" if wrong else ""


def _has_bare_at(address: str) -> bool:
    """Whether what is left of a password would be taken for a host, a port or a database's name,
    and told to people as such."""
    authority, _, path = address.partition("://")[2].partition("?")[0].partition("/")
    return authority.count("@") > 1 or "@" in path
