"""The `losses` table: custom losses that were checked and accepted."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from tinkex.server.storage.database.transactions import Transaction


class LossRow(NamedTuple):
    """A custom loss, as a client declared it."""

    loss_id: str  # the server's name for it
    session_id: str  # that declared it
    tenant: str  # whose it is
    name: str  # the client's name for it
    spec: Mapping[str, Any]  # the protocol's `inputs` and `graph`
    digest: bytes  # of name and spec
    created_at: float  # Unix seconds


def insert_once(db: Transaction, row: LossRow) -> None:
    """Insert, unless the loss is there already."""
    db.execute(
        """INSERT INTO losses (loss_id, session_id, tenant, name, spec, digest, created_at)
            VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING""",
        (
            row.loss_id,
            row.session_id,
            row.tenant,
            row.name,
            json.dumps(row.spec),
            row.digest,
            row.created_at,
        ),
    )


def get(db: Transaction, loss_id: str) -> LossRow | None:
    row = db.execute("SELECT * FROM losses WHERE loss_id = ?", (loss_id,)).fetchone()
    if row is None:
        return None
    values = dict(row)
    values["spec"] = json.loads(values["spec"])
    return LossRow(**values)


def size(db: Transaction, tenant: str) -> int:
    """The bytes of a tenant's losses."""
    (found,) = db.execute(
        "SELECT COALESCE(SUM(LENGTH(spec)), 0) FROM losses WHERE tenant = ?", (tenant,)
    ).fetchone()
    return int(found)


def delete_ended(db: Transaction, in_use: Collection[str]) -> None:
    """Delete the losses of sessions that have ended and are not `in_use`."""
    marks = ", ".join("?" * len(in_use))
    used = f"AND session_id NOT IN ({marks})" if in_use else ""
    db.execute(
        f"""DELETE FROM losses WHERE session_id NOT IN
            (SELECT session_id FROM sessions WHERE status = 'active') {used}""",
        tuple(in_use),
    )
