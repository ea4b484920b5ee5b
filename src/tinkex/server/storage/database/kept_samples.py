"""The `kept_samples` table: a ring of recent samples and training examples per source.

A source is a tenant's run, or a tenant and a base model. Bytes only; ids only grow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import NamedTuple

from tinkex.server.storage.database.transactions import Transaction


@dataclass(frozen=True, slots=True)
class Source:
    """Where samples come from; `model_id` is the run, if it is one's."""

    tenant: str
    base_model: str
    model_id: str | None = None


class KeptRow(NamedTuple):
    """A sample that is kept for people to read; `data` is its JSON, compressed."""

    id: int
    source: Source
    at: float
    data: bytes


def add(db: Transaction, source: Source, at: float, data: bytes) -> None:
    """Keep one, unless its run was deleted meanwhile: samplers outlive runs."""
    db.execute(
        """INSERT INTO kept_samples (tenant, model_id, base_model, at, data)
            SELECT :tenant, :model_id, :base_model, :at, :data
            WHERE CAST(:model_id AS TEXT) IS NULL
               OR EXISTS (SELECT 1 FROM runs WHERE model_id = :model_id)""",
        {**asdict(source), "at": at, "data": data},
    )


def trim(db: Transaction, source: Source, most: int) -> None:
    """Forget all but the newest of a source."""
    run = "model_id IS NULL" if source.model_id is None else "model_id = :model_id"
    where = f"tenant = :tenant AND {run} AND base_model = :base_model"
    db.execute(
        f"""DELETE FROM kept_samples WHERE {where} AND id <=
            (SELECT id FROM kept_samples WHERE {where} ORDER BY id DESC LIMIT 1 OFFSET :most)""",
        {**asdict(source), "most": most},
    )


def page(
    db: Transaction,
    tenant: str | None,
    run: str | None,
    model: str | None,
    before: int,
    limit: int,
) -> list[KeptRow]:
    """The newest before an id, of a tenant or of all; of one run or one model if asked."""
    rows = db.execute(
        """SELECT id, tenant, base_model, model_id, at, data FROM kept_samples
            WHERE id < :before AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant)
            AND (CAST(:run AS TEXT) IS NULL OR model_id = :run)
            AND (CAST(:model AS TEXT) IS NULL OR base_model = :model)
            ORDER BY id DESC LIMIT :limit""",
        {"before": before, "tenant": tenant, "run": run, "model": model, "limit": limit},
    )
    return [KeptRow(number, Source(*source), at, data) for number, *source, at, data in rows]


def delete_runs(db: Transaction, runs: Iterable[str]) -> None:
    db.executemany("DELETE FROM kept_samples WHERE model_id = ?", [(run,) for run in runs])


def delete_all(db: Transaction) -> None:
    db.execute("DELETE FROM kept_samples")


def delete_old(db: Transaction, before: float) -> None:
    db.execute("DELETE FROM kept_samples WHERE at < ?", (before,))
