"""The `checkpoints` and `copies` tables: what was saved, by whom, where its files are, until when.

A row names the folder of its files and never owns it: samplers may point at the same folder, and it
goes away when nobody does. `digest` is that of the folder's manifest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from tinkex.server.storage.database.transactions import Row, Transaction
from tinkex.types.tinker_path import CheckpointKind

Kind = CheckpointKind
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A checkpoint as stored."""

    path: str  # `tinker://…`
    model_id: str  # run it is of
    session_id: str  # it was saved in
    tenant: str  # who owns it
    kind: Kind  # weights to train on from, or to sample with
    name: str  # last part of the path
    folder: str  # below the home's weights, or in the object store
    base_model: str  # by its public name
    rank: int  # of its adapters
    train_attn: bool  # whether attention is adapted
    train_mlp: bool  # whether MLPs or experts are
    train_unembed: bool  # whether the output layer is
    optimizer: str  # configuration, as JSON text
    step: int  # optimizer steps before it
    size_bytes: int  # of its files
    created_at: float  # seconds since 1970
    digest: str  # names the content of its files
    public: bool = False  # whether every tenant may read it
    user_metadata: Mapping[str, Any] | None = None  # the owner's own
    project_id: str | None = None  # what it is booked under
    expires_at: float | None = None  # None: never

    def expired(self, now: float) -> bool:
        return self.expires_at is not None and self.expires_at <= now


_COLUMNS = tuple(CheckpointRow.__dataclass_fields__)
_NAMES = ", ".join(_COLUMNS)
_REPLACED = ", ".join(f"{name} = excluded.{name}" for name in (*_COLUMNS, "accrued_at"))
_BOOLEANS = ("train_attn", "train_mlp", "train_unembed", "public")


def put(db: Transaction, row: CheckpointRow) -> None:
    """Store a checkpoint in place of any other of the same path."""
    values = {name: getattr(row, name) for name in _COLUMNS}
    if row.user_metadata is not None:
        values["user_metadata"] = json.dumps(dict(row.user_metadata))
    marks = ", ".join(f":{name}" for name in _COLUMNS)
    db.execute(
        f"""INSERT INTO checkpoints ({_NAMES}, accrued_at) VALUES ({marks}, :created_at)
            ON CONFLICT (path) DO UPDATE SET {_REPLACED}""",
        values,
    )


def get(db: Transaction, path: str) -> CheckpointRow | None:
    row = db.execute(f"SELECT {_NAMES} FROM checkpoints WHERE path = ?", (path,)).fetchone()
    return None if row is None else from_row(row)


def of_run(db: Transaction, model_id: str) -> list[CheckpointRow]:
    """All checkpoints of a run, newest first."""
    rows = db.execute(
        f"SELECT {_NAMES} FROM checkpoints WHERE model_id = ? ORDER BY created_at DESC, path",
        (model_id,),
    )
    return [from_row(row) for row in rows]


def of_tenant(
    db: Transaction, tenant: str | None, limit: int, offset: int
) -> tuple[list[CheckpointRow], int]:
    """A page of a tenant's checkpoints, or everybody's, newest first, and how many there are."""
    whose = "CAST(? AS TEXT) IS NULL" if tenant is None else "tenant = ?"
    rows = db.execute(
        f"""SELECT {_NAMES} FROM checkpoints WHERE {whose}
            ORDER BY created_at DESC, path LIMIT ? OFFSET ?""",
        (tenant, limit, offset),
    )
    page = [from_row(row) for row in rows]
    (total,) = db.execute(f"SELECT COUNT(*) FROM checkpoints WHERE {whose}", (tenant,)).fetchone()
    return page, total


def stored(db: Transaction, tenant: str | None) -> list[tuple[str, int, int]]:
    """(tenant, checkpoints, bytes) of one tenant or of all, largest first."""
    rows = db.execute(
        """SELECT tenant, COUNT(*), SUM(size_bytes) AS size FROM checkpoints
            WHERE CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant
            GROUP BY tenant ORDER BY size DESC""",
        {"tenant": tenant},
    )
    return [(owner, count, size) for owner, count, size in rows]


def samplers_for(db: Transaction, tenant: str, now: float, limit: int) -> list[CheckpointRow]:
    """Sampler weights that a tenant may read, its own and published ones, newest first."""
    rows = db.execute(
        f"""SELECT {_NAMES} FROM checkpoints
            WHERE kind = 'sampler_weights' AND (tenant = ? OR public = 1)
              AND (expires_at IS NULL OR expires_at > ?)
            ORDER BY created_at DESC, path LIMIT ?""",
        (tenant, now, limit),
    )
    return [from_row(row) for row in rows]


def expired(db: Transaction, now: float) -> list[CheckpointRow]:
    rows = db.execute(f"SELECT {_NAMES} FROM checkpoints WHERE expires_at <= ?", (now,))
    return [from_row(row) for row in rows]


def delete(db: Transaction, path: str) -> bool:
    return db.execute("DELETE FROM checkpoints WHERE path = ?", (path,)).rowcount == 1


def set_public(db: Transaction, path: str, public: bool) -> None:
    db.execute("UPDATE checkpoints SET public = ? WHERE path = ?", (public, path))


def set_expiry(db: Transaction, path: str, expires_at: float | None) -> None:
    db.execute("UPDATE checkpoints SET expires_at = ? WHERE path = ?", (expires_at, path))


def set_project(db: Transaction, session_id: str, project_id: str) -> None:
    db.execute(
        "UPDATE checkpoints SET project_id = ? WHERE session_id = ?", (project_id, session_id)
    )


def bytes_of(db: Transaction, tenant: str) -> int:
    (total,) = db.execute(
        "SELECT COALESCE(SUM(size_bytes), 0) FROM checkpoints WHERE tenant = ?", (tenant,)
    ).fetchone()
    return int(total)


def total(db: Transaction) -> tuple[int, int]:
    """How many there are, and their bytes."""
    count, size = db.execute(
        "SELECT COUNT(*), COALESCE(SUM(size_bytes), 0) FROM checkpoints"
    ).fetchone()
    return int(count), int(size)


def storage_of(
    db: Transaction, tenant: str, project_id: str | None
) -> list[tuple[str | None, int, int]]:
    """Per project of a tenant: (project, number of checkpoints, bytes)."""
    rows = db.execute(
        """SELECT project_id, COUNT(*), SUM(size_bytes) FROM checkpoints
            WHERE tenant = ? AND (CAST(? AS TEXT) IS NULL OR project_id = ?) GROUP BY project_id""",
        (tenant, project_id, project_id),
    )
    return [(project, count, size) for project, count, size in rows]


def of_sessions(db: Transaction, session_ids: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Per session that has any: (number of checkpoints, bytes)."""
    ids = list(session_ids)
    if not ids:
        return {}
    marks = ", ".join("?" * len(ids))
    rows = db.execute(
        f"""SELECT session_id, COUNT(*), SUM(size_bytes) FROM checkpoints
            WHERE session_id IN ({marks}) GROUP BY session_id""",
        ids,
    )
    return {session: (count, size) for session, count, size in rows}


def folders(db: Transaction) -> set[str]:
    """Every folder that some checkpoint points at."""
    return {folder for (folder,) in db.execute("SELECT DISTINCT folder FROM checkpoints")}


def copied(db: Transaction, tenant: str, key: str) -> str | None:
    """Where an earlier copy with this idempotency key went."""
    row = db.execute(
        "SELECT path FROM copies WHERE tenant = ? AND idempotency_key = ?", (tenant, key)
    ).fetchone()
    return None if row is None else str(row[0])


def remember_copy(db: Transaction, tenant: str, key: str, path: str) -> None:
    db.execute(
        "INSERT INTO copies (tenant, idempotency_key, path) VALUES (?, ?, ?)", (tenant, key, path)
    )


def from_row(row: Row) -> CheckpointRow:
    values = dict(row)
    if values["user_metadata"] is not None:
        values["user_metadata"] = json.loads(values["user_metadata"])
    for name in _BOOLEANS:
        values[name] = bool(values[name])
    return CheckpointRow(**values)
