"""The `samplers` and `sample_windows` tables.

A sampler names the folder of the weights it serves, for ever; no folder means the base model.
A window is a range of sample numbers that may have been accepted: it is written ahead of use, so
that after a restart the server knows which samples it may have lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tinkex.server.storage.database.transactions import Transaction


@dataclass(frozen=True, slots=True)
class SamplerRow:
    """`model_id` is the tenant's own run whose weights it serves, if it is one's."""

    sampler_id: str  # as clients name it
    session_id: str  # it ends with
    tenant: str  # whose it is
    base_model: str  # it samples from
    created_at: float  # when it was made
    model_path: str | None = None  # as it was asked for; None: the base model
    folder: str | None = None  # of its weights; None: the base model
    clones: int = 0  # handed out so far: each numbers its samples itself
    model_id: str | None = None  # whose weights it serves


def insert(db: Transaction, row: SamplerRow) -> None:
    db.execute(
        """INSERT INTO samplers
            (sampler_id, session_id, tenant, base_model, created_at, model_path, folder, model_id)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?)""",
        (
            row.sampler_id,
            row.session_id,
            row.tenant,
            row.base_model,
            row.created_at,
            row.model_path,
            row.folder,
            row.model_id,
        ),
    )


def insert_once(db: Transaction, row: SamplerRow) -> SamplerRow:
    """Insert, unless the sampler exists: then give the one that does."""
    known = get(db, row.sampler_id)
    if known is None:
        insert(db, row)
    return known or row


def get(db: Transaction, sampler_id: str) -> SamplerRow | None:
    row = db.execute("SELECT * FROM samplers WHERE sampler_id = ?", (sampler_id,)).fetchone()
    return None if row is None else SamplerRow(**dict(row))


def serves(db: Transaction, folder: str) -> bool:
    """Whether a sampler points at this folder."""
    found = db.execute("SELECT 1 FROM samplers WHERE folder = ?", (folder,)).fetchone()
    return found is not None


def of_session(db: Transaction, session_id: str) -> list[SamplerRow]:
    rows = db.execute(
        "SELECT * FROM samplers WHERE session_id = ? ORDER BY created_at, sampler_id",
        (session_id,),
    )
    return [SamplerRow(**dict(row)) for row in rows]


def folders(db: Transaction, ended_before: float) -> set[str]:
    """Every folder that a sampler may still serve: its session lives, or ended not long ago."""
    rows = db.execute(
        """SELECT DISTINCT folder FROM samplers JOIN sessions USING (session_id)
            WHERE folder IS NOT NULL AND (ended_at IS NULL OR ended_at >= ?)""",
        (ended_before,),
    )
    return {folder for (folder,) in rows}


class Unnamed(NamedTuple):
    """A sampler whose weights no checkpoint names."""

    sampler_id: str  # whose weights they are
    session_id: str  # that made it
    tenant: str  # whose it is
    folder: str  # where they lie
    created_at: float  # Unix seconds
    ended: int  # 1 if its session is over


def unnamed(db: Transaction, tenant: str | None = None) -> list[Unnamed]:
    """Samplers with weights saved for them alone, of one tenant or all, oldest first."""
    whose = "CAST(? AS TEXT) IS NULL" if tenant is None else "samplers.tenant = ?"
    rows = db.execute(
        f"""SELECT sampler_id, session_id, samplers.tenant, folder, samplers.created_at,
                ended_at IS NOT NULL AS ended
            FROM samplers JOIN sessions USING (session_id)
            WHERE {whose} AND model_path IS NULL AND folder IS NOT NULL
                AND folder NOT IN (SELECT folder FROM checkpoints)
            ORDER BY samplers.created_at, sampler_id""",
        (tenant,),
    )
    return [Unnamed(*row) for row in rows]


def forget(db: Transaction, sampler_ids: Sequence[str]) -> None:
    """Samplers that are no more; their numbers may have been used, so their windows stay."""
    db.executemany("DELETE FROM samplers WHERE sampler_id = ?", [(name,) for name in sampler_ids])


def next_clone(db: Transaction, sampler_id: str) -> int:
    """A number no other client of this sampler has; the original is 0."""
    (number,) = db.execute(
        "UPDATE samplers SET clones = clones + 1 WHERE sampler_id = ? RETURNING clones",
        (sampler_id,),
    ).fetchone()
    return int(number)


class Window(NamedTuple):
    """Sample numbers from `low` up to but without `high`."""

    sampler_id: str
    clone: int
    low: int
    high: int


def put_window(db: Transaction, window: Window) -> None:
    db.execute(
        """INSERT INTO sample_windows (sampler_id, clone, low, high) VALUES (?, ?, ?, ?)
            ON CONFLICT (sampler_id, clone)
            DO UPDATE SET low = excluded.low, high = excluded.high""",
        (window.sampler_id, window.clone, window.low, window.high),
    )


def get_window(db: Transaction, sampler_id: str, clone: int) -> Window | None:
    row = db.execute(
        "SELECT * FROM sample_windows WHERE sampler_id = ? AND clone = ?", (sampler_id, clone)
    ).fetchone()
    return None if row is None else Window(**dict(row))
