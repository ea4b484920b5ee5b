"""The `sessions` table."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session as stored. `status` is active, finished (by its client) or expired."""

    session_id: str
    tenant: str
    created_at: float
    seen_at: float
    tags: tuple[str, ...] = ()
    user_metadata: Mapping[str, Any] = field(default_factory=dict)
    sdk_version: str | None = None
    project_id: str | None = None
    display_name: str | None = None
    idempotency_key: str | None = None
    status: str = "active"
    reason: str | None = None
    detail: str | None = None
    ended_at: float | None = None


def insert(connection: sqlite3.Connection, row: SessionRow) -> None:
    connection.execute(
        """INSERT INTO sessions (session_id, tenant, created_at, seen_at, tags, user_metadata,
            sdk_version, project_id, display_name, idempotency_key)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        (
            row.session_id,
            row.tenant,
            row.created_at,
            row.seen_at,
            json.dumps(row.tags),
            json.dumps(row.user_metadata),
            row.sdk_version,
            row.project_id,
            row.display_name,
            row.idempotency_key,
        ),
    )


def insert_once(connection: sqlite3.Connection, row: SessionRow) -> SessionRow:
    """Insert, unless the tenant's idempotency key already has a session: then give that one."""
    key = row.idempotency_key
    known = None if key is None else by_key(connection, row.tenant, key)
    if known is None:
        insert(connection, row)
    return known or row


def get(connection: sqlite3.Connection, session_id: str) -> SessionRow | None:
    row = connection.execute(
        "SELECT * FROM sessions WHERE session_id = ?", (session_id,)
    ).fetchone()
    return None if row is None else from_row(row)


def by_key(connection: sqlite3.Connection, tenant: str, key: str) -> SessionRow | None:
    row = connection.execute(
        "SELECT * FROM sessions WHERE tenant = ? AND idempotency_key = ?", (tenant, key)
    ).fetchone()
    return None if row is None else from_row(row)


def active(connection: sqlite3.Connection) -> list[SessionRow]:
    rows = connection.execute("SELECT * FROM sessions WHERE status = 'active'")
    return [from_row(row) for row in rows]


def touch(connection: sqlite3.Connection, session_id: str, seen_at: float) -> None:
    connection.execute(
        "UPDATE sessions SET seen_at = ? WHERE session_id = ?", (seen_at, session_id)
    )


def end(
    connection: sqlite3.Connection,
    session_id: str,
    status: str,
    reason: str | None,
    detail: str | None,
    ended_at: float,
) -> bool:
    """End an active session; the first reason wins. False if it had ended before."""
    changed = connection.execute(
        """UPDATE sessions SET status = ?, reason = ?, detail = ?, ended_at = ?
            WHERE session_id = ? AND status = 'active'""",
        (status, reason, detail, ended_at, session_id),
    )
    return changed.rowcount == 1


def from_row(row: sqlite3.Row) -> SessionRow:
    values = dict(row)
    values["tags"] = tuple(json.loads(values["tags"]))
    values["user_metadata"] = json.loads(values["user_metadata"])
    return SessionRow(**values)
