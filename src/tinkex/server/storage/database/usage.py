"""The `usage` table: what each tenant used, hour by hour. Amounts only; it knows no prices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tinkex.server.storage.database.transactions import Row, Transaction

HOUR = 3600
GIGABYTE = 1e9
Measure = Literal["training", "sampling_prefill", "sampling_sample", "checkpoint", "storage"]


@dataclass(frozen=True, slots=True)
class Source:
    """Who used something, and for what. Empty text stands for none."""

    tenant: str
    session_id: str = ""
    project_id: str = ""
    base_model: str = ""


class Use(NamedTuple):
    """An amount of one measure within the hour that starts at the Unix second `hour`."""

    hour: int
    source: Source
    measure: Measure
    amount: float
    cached: bool = False


def add(db: Transaction, use: Use) -> None:
    """Add an amount to its hour."""
    source = use.source
    db.execute(
        """INSERT INTO usage
            (hour, tenant, session_id, project_id, base_model, measure, cached, amount)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?)
            ON CONFLICT (tenant, hour, session_id, project_id, base_model, measure, cached)
            DO UPDATE SET amount = usage.amount + excluded.amount""",
        (
            use.hour,
            source.tenant,
            source.session_id,
            source.project_id,
            source.base_model,
            use.measure,
            use.cached,
            use.amount,
        ),
    )


def between(db: Transaction, tenant: str, start: float, end: float) -> list[Use]:
    """A tenant's use in hours that start in [start, end), oldest first."""
    rows = db.execute(
        """SELECT hour, measure, amount, cached, session_id, project_id, base_model FROM usage
            WHERE tenant = ? AND hour >= ? AND hour < ?
            ORDER BY hour, session_id, project_id, base_model, measure, cached""",
        (tenant, start, end),
    )
    return [
        Use(hour, Source(tenant, *source), measure, amount, bool(cached))
        for hour, measure, amount, cached, *source in rows
    ]


@dataclass(frozen=True, slots=True)
class Hour:
    """A tenant's tokens with one model in one hour."""

    hour: int  # Unix second at which it starts
    tenant: str  # who used them
    model: str  # base model
    training: int  # tokens trained on
    prefill: int  # prompt tokens computed
    prefill_cached: int  # prompt tokens found in the cache
    sampled: int  # tokens drawn


def hourly(db: Transaction, tenant: str | None, since: float) -> list[Hour]:
    """Tokens by hour, tenant and model, of one tenant or of all, oldest first."""
    kinds = (
        "measure = 'training'",
        "measure = 'sampling_prefill' AND cached = 0",
        "measure = 'sampling_prefill' AND cached = 1",
        "measure = 'sampling_sample'",
    )
    sums = ", ".join(
        f"CAST(SUM(CASE WHEN {kind} THEN amount ELSE 0 END) AS BIGINT)" for kind in kinds
    )
    rows = db.execute(
        f"""SELECT hour, tenant, base_model, {sums} FROM usage
            WHERE (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant) AND hour >= :since
            AND base_model != '' AND measure IN ('training', 'sampling_prefill', 'sampling_sample')
            GROUP BY hour, tenant, base_model ORDER BY hour, tenant, base_model""",
        {"tenant": tenant, "since": since},
    )
    return [Hour(*row) for row in rows]


def hour_of(moment: float) -> int:
    return int(moment // HOUR) * HOUR


def accrue_tenant(db: Transaction, tenant: str, now: float) -> None:
    """Count the gigabyte-hours of a tenant's checkpoints since they were last counted."""
    rows = db.execute(
        f"SELECT {_STORED} FROM checkpoints WHERE tenant = ? AND accrued_at < ?", (tenant, now)
    ).fetchall()
    for row in rows:
        _accrue(db, row, now)


def accrue_checkpoint(db: Transaction, path: str, now: float) -> None:
    """Count one checkpoint's gigabyte-hours, if there is one: it is about to go or be replaced."""
    row = db.execute(f"SELECT {_STORED} FROM checkpoints WHERE path = ?", (path,)).fetchone()
    if row is not None:
        _accrue(db, row, now)


_STORED = "path, tenant, session_id, project_id, base_model, size_bytes, accrued_at"


def _accrue(db: Transaction, row: Row, now: float) -> None:
    path, tenant, session_id, project_id, base_model, size, since = row
    source = Source(tenant, session_id, project_id or "", base_model)
    for hour, seconds in _hours(since, now):
        add(db, Use(hour, source, "storage", size / GIGABYTE * seconds / HOUR))
    db.execute("UPDATE checkpoints SET accrued_at = ? WHERE path = ?", (now, path))


def _hours(start: float, end: float) -> Iterator[tuple[int, float]]:
    """The hours a span touches, each with the seconds of the span inside it."""
    while start < end:
        hour = hour_of(start)
        until = min(end, hour + HOUR)
        yield hour, until - start
        start = until
