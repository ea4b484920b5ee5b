"""Says whose list is empty: most often the runs are there, under another key."""

from __future__ import annotations

import contextlib

from tinkex.cli.line.context import CommandContext
from tinkex.cli.outside.dependencies import Connection
from tinkex.cli.outside.server_floor import is_ours
from tinkex.client.settings.config import LOCAL_BASE_URL
from tinkex.wire.limits import LOCAL_API_KEY

_SHOWN = 4


def explain_empty(context: CommandContext) -> None:
    """Name the server and the key that asked, and how to see the others' on one's own machine."""
    address, _, key = context.deps.clients.account(context.connection).partition(" ")
    if context.is_json or address == LOCAL_BASE_URL:
        return
    context.note(f"Asked {address} with the key {masked(key)}.")
    if is_ours(address) and _has_any(context):
        context.note("Other keys have runs there. Add --local to see all of your home.")


def masked(key: str) -> str:
    """Enough of a key to know it by."""
    if key in ("None", LOCAL_API_KEY):
        return LOCAL_API_KEY
    if len(key) < 4 * _SHOWN:
        return f"{key[:_SHOWN]}…"
    return f"{key[:_SHOWN]}…{key[-_SHOWN:]}"


def _has_any(context: CommandContext) -> bool:
    clients = context.deps.clients
    rest = clients.rest(Connection(base_url=LOCAL_BASE_URL, timeout=context.connection.timeout))
    with contextlib.suppress(Exception):
        found = context.wait(rest.list_training_runs(limit=1))
        return bool(found.cursor.total_count)
    return False
