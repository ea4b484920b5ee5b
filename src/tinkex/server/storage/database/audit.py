"""The `audit` table: who did what to which checkpoint or project, and when. Only ever added to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tinkex.server.storage.database.transactions import Row, Transaction

Category = Literal["checkpoints", "projects"]


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One event, seen by the tenant it concerns."""

    at: float  # Unix seconds
    tenant: str  # whom it concerns
    category: Category  # what kind of thing happened
    event: str  # what happened
    details: Mapping[str, Any] = field(default_factory=dict)  # its own facts, never a secret
    model_id: str | None = None  # of the run, if it is about one
    path: str | None = None  # of the checkpoint, likewise


def add(db: Transaction, row: AuditRow) -> None:
    db.execute(
        """INSERT INTO audit (at, tenant, category, event, details, model_id, path)
            VALUES (?, ?, ?, ?, ?, ?, ?)""",
        (
            row.at,
            row.tenant,
            row.category,
            row.event,
            json.dumps(dict(row.details)),
            row.model_id,
            row.path,
        ),
    )


def between(
    db: Transaction,
    tenant: str,
    category: str | None,
    start: float,
    end: float,
    limit: int,
) -> list[AuditRow]:
    """A tenant's newest `limit` events in [start, end), oldest first."""
    rows = db.execute(
        """SELECT at, tenant, category, event, details, model_id, path FROM audit
            WHERE tenant = ? AND at >= ? AND at < ? AND (CAST(? AS TEXT) IS NULL OR category = ?)
            ORDER BY id DESC LIMIT ?""",
        (tenant, start, end, category, category, limit),
    ).fetchall()
    return [_row(row) for row in reversed(rows)]


def of_kind(db: Transaction, tenant: str, event: str, since: float) -> list[AuditRow]:
    """A tenant's events of one kind from `since` on."""
    rows = db.execute(
        """SELECT at, tenant, category, event, details, model_id, path FROM audit
            WHERE tenant = ? AND at >= ? AND event = ?""",
        (tenant, since, event),
    )
    return [_row(row) for row in rows]


def _row(row: Row) -> AuditRow:
    values = dict(row)
    values["details"] = json.loads(values["details"])
    return AuditRow(**values)
