"""The `runs` table: one row per training run, made with its first request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tinkex.server.storage.database.transactions import Row, Transaction


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run as stored."""

    model_id: str  # its id, the protocol's word for a run
    session_id: str  # it was made in
    tenant: str  # who owns it
    base_model: str  # by its public name
    optimizer: str  # configuration, as JSON text
    created_at: float  # seconds since 1970, as all times here
    requested_at: float  # when something was last asked of it
    rank: int | None = None  # of its adapters; None: not created yet
    seed: int | None = None  # chosen when the run is accepted: made again, it has the same adapters
    train_attn: bool | None = None  # whether attention is adapted
    train_mlp: bool | None = None  # whether MLPs or experts are
    train_unembed: bool | None = None  # whether the output layer is
    user_metadata: Mapping[str, Any] | None = None  # the owner's own
    # live, stopping once its owner has stopped it, ended once nothing may be asked
    state: str = "live"
    name: str | None = None  # its owner's, in place of the id
    note: str | None = None  # its owner's words about it
    step: int = 0  # optimizer steps taken
    loss: float | None = None  # newest, per token
    tokens: int = 0  # trained on
    ended_at: float | None = None  # when it came to an end
    parent: str | None = None  # checkpoint it was made from or last loaded


_COLUMNS = tuple(RunRow.__dataclass_fields__)
_BOOLEANS = ("train_attn", "train_mlp", "train_unembed")


def insert(db: Transaction, row: RunRow) -> None:
    values = {name: getattr(row, name) for name in _COLUMNS}
    if row.user_metadata is not None:
        values["user_metadata"] = json.dumps(row.user_metadata)
    names = ", ".join(_COLUMNS)
    marks = ", ".join(f":{name}" for name in _COLUMNS)
    db.execute(f"INSERT INTO runs ({names}) VALUES ({marks})", values)


def get(db: Transaction, model_id: str) -> RunRow | None:
    row = db.execute("SELECT * FROM runs WHERE model_id = ?", (model_id,)).fetchone()
    return None if row is None else from_row(row)


def live(db: Transaction) -> list[RunRow]:
    """Every run that has not ended."""
    rows = db.execute("SELECT * FROM runs WHERE state IN ('live', 'stopping')")
    return [from_row(row) for row in rows]


def children(db: Transaction, tenant: str, prefix: str) -> list[RunRow]:
    """A tenant's runs whose parent's path begins so, oldest first."""
    rows = db.execute(
        """SELECT * FROM runs WHERE tenant = ? AND substr(parent, 1, ?) = ?
            ORDER BY created_at LIMIT 100""",
        (tenant, len(prefix), prefix),
    )
    return [from_row(row) for row in rows]


def set_lora(db: Transaction, row: RunRow) -> None:
    """Record what a run made from a checkpoint turned out to be."""
    db.execute(
        """UPDATE runs SET rank = ?, train_attn = ?, train_mlp = ?, train_unembed = ?
            WHERE model_id = ?""",
        (row.rank, row.train_attn, row.train_mlp, row.train_unembed, row.model_id),
    )


def touch(db: Transaction, model_id: str, requested_at: float) -> None:
    db.execute("UPDATE runs SET requested_at = ? WHERE model_id = ?", (requested_at, model_id))


def stop(db: Transaction, model_id: str) -> None:
    db.execute("UPDATE runs SET state = 'stopping' WHERE model_id = ?", (model_id,))


def end(db: Transaction, model_id: str, ended_at: float) -> None:
    db.execute(
        "UPDATE runs SET state = 'ended', ended_at = ? WHERE model_id = ?", (ended_at, model_id)
    )


def delete(db: Transaction, model_id: str) -> None:
    db.execute("DELETE FROM runs WHERE model_id = ?", (model_id,))


def set_name(db: Transaction, model_id: str, name: str | None) -> None:
    db.execute("UPDATE runs SET name = ? WHERE model_id = ?", (name, model_id))


def set_note(db: Transaction, model_id: str, note: str | None) -> None:
    db.execute("UPDATE runs SET note = ? WHERE model_id = ?", (note, model_id))


def trained(db: Transaction, model_id: str, tokens: int, loss: float | None) -> None:
    """Count what a forward-backward pass has trained on."""
    db.execute(
        "UPDATE runs SET tokens = tokens + ?, loss = COALESCE(?, loss) WHERE model_id = ?",
        (tokens, loss, model_id),
    )


def stepped(db: Transaction, model_id: str) -> None:
    db.execute("UPDATE runs SET step = step + 1 WHERE model_id = ?", (model_id,))


def set_origin(db: Transaction, model_id: str, parent: str, step: int) -> None:
    """Record which checkpoint a run has loaded, and the step from which it continues."""
    db.execute("UPDATE runs SET parent = ?, step = ? WHERE model_id = ?", (parent, step, model_id))


def step_of(db: Transaction, model_id: str) -> int:
    row = db.execute("SELECT step FROM runs WHERE model_id = ?", (model_id,)).fetchone()
    return 0 if row is None else int(row[0])


def from_row(row: Row) -> RunRow:
    values = dict(row)
    if values["user_metadata"] is not None:
        values["user_metadata"] = json.loads(values["user_metadata"])
    for name in _BOOLEANS:
        values[name] = None if values[name] is None else bool(values[name])
    return RunRow(**values)
