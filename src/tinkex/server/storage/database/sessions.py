"""The `sessions` table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tinkex.server.storage.database.transactions import Row, Transaction


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session as stored."""

    session_id: str  # its id
    tenant: str  # who owns it
    created_at: float  # seconds since 1970
    seen_at: float  # its last heartbeat
    tags: tuple[str, ...] = ()  # its client's
    user_metadata: Mapping[str, Any] = field(default_factory=dict)  # its client's
    sdk_version: str | None = None  # of its client
    project_id: str | None = None  # what it is booked under
    display_name: str | None = None  # its client's name for it
    # of the request that made it: sent again, it is the same session
    idempotency_key: str | None = None
    status: str = "active"  # active, finished (by its client) or expired
    reason: str | None = None  # why it ended, one word
    detail: str | None = None  # the same in words
    ended_at: float | None = None  # None: it is active


def insert(db: Transaction, row: SessionRow) -> None:
    db.execute(
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


def insert_once(db: Transaction, row: SessionRow) -> SessionRow:
    """Insert, unless the tenant's idempotency key already has a session: then give that one."""
    key = row.idempotency_key
    known = None if key is None else by_key(db, row.tenant, key)
    if known is None:
        insert(db, row)
    return known or row


def get(db: Transaction, session_id: str) -> SessionRow | None:
    row = db.execute("SELECT * FROM sessions WHERE session_id = ?", (session_id,)).fetchone()
    return None if row is None else from_row(row)


def by_key(db: Transaction, tenant: str, key: str) -> SessionRow | None:
    row = db.execute(
        "SELECT * FROM sessions WHERE tenant = ? AND idempotency_key = ?", (tenant, key)
    ).fetchone()
    return None if row is None else from_row(row)


def active(db: Transaction) -> list[SessionRow]:
    rows = db.execute("SELECT * FROM sessions WHERE status = 'active'")
    return [from_row(row) for row in rows]


def touch(db: Transaction, session_id: str, seen_at: float) -> None:
    db.execute("UPDATE sessions SET seen_at = ? WHERE session_id = ?", (seen_at, session_id))


def end(
    db: Transaction,
    session_id: str,
    status: str,
    reason: str | None,
    detail: str | None,
    ended_at: float,
) -> bool:
    """End an active session; the first reason wins. False if it had ended before."""
    changed = db.execute(
        """UPDATE sessions SET status = ?, reason = ?, detail = ?, ended_at = ?
            WHERE session_id = ? AND status = 'active'""",
        (status, reason, detail, ended_at, session_id),
    )
    return changed.rowcount == 1


def from_row(row: Row) -> SessionRow:
    values = dict(row)
    values["tags"] = tuple(json.loads(values["tags"]))
    values["user_metadata"] = json.loads(values["user_metadata"])
    return SessionRow(**values)


def write_and_undo(db: Transaction) -> None:
    """What only a database that has room and can be written to does without an error. A statement
    that changes no row would need no room."""
    probe = ("", "", 0.0, 0.0, "[]", "{}")
    db.execute(
        """INSERT INTO sessions (session_id, tenant, created_at, seen_at, tags, user_metadata)
            VALUES (?, ?, ?, ?, ?, ?)""",
        probe,
    )
    db.execute("DELETE FROM sessions WHERE session_id = ?", probe[:1])
