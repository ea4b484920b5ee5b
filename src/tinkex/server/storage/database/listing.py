"""Pages of runs and sessions for people who browse: reads over several tables, newest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tinkex.server.storage.database import runs, sessions
from tinkex.server.storage.database.runs import RunRow
from tinkex.server.storage.database.sessions import SessionRow
from tinkex.server.storage.database.transactions import Transaction

_SEARCHED = " || '\n' || ".join(
    f"COALESCE({column}, '')"
    for column in (
        "r.model_id",
        "r.base_model",
        "r.name",
        "r.note",
        "r.user_metadata",
        "s.display_name",
    )
)
_PUBLISHED = (
    "EXISTS (SELECT 1 FROM checkpoints c WHERE c.public = 1 AND c.{column} = {table}.{column})"
)


def run_page(
    db: Transaction,
    tenant: str | None,
    limit: int,
    offset: int,
    *,
    accessible: bool = False,
    project_id: str | None = None,
) -> tuple[list[RunRow], int]:
    """A page of a tenant's runs, or of everybody's, and how many there are. `accessible` adds the
    runs of others that published a checkpoint; `project_id` keeps those of its sessions."""
    where = _visible("runs", "model_id", tenant, accessible)
    values: list[str | None] = [tenant]
    if project_id is not None:
        where += " AND session_id IN (SELECT session_id FROM sessions WHERE project_id = ?)"
        values.append(project_id)
    rows = db.execute(
        f"""SELECT * FROM runs WHERE {where}
            ORDER BY requested_at DESC, model_id LIMIT ? OFFSET ?""",
        (*values, limit, offset),
    )
    page = [runs.from_row(row) for row in rows]
    (total,) = db.execute(f"SELECT COUNT(*) FROM runs WHERE {where}", values).fetchone()
    return page, total


def search_runs(
    db: Transaction,
    tenant: str | None,
    limit: int,
    offset: int,
    state: str,
    search: str | None,
) -> tuple[list[RunRow], int]:
    """A page of a tenant's runs, or of everybody's, newest request first, and how many there are.
    `state` is any, live or ended; `search` is looked for in names, ids, models and notes."""
    where = f"""(CAST(:tenant AS TEXT) IS NULL OR r.tenant = :tenant)
        AND (:state = 'any' OR (:state = 'ended') = (r.state = 'ended'))
        AND (CAST(:search AS TEXT) IS NULL
            OR instr(lower({_SEARCHED}), lower(CAST(:search AS TEXT))) > 0)"""
    values = {"tenant": tenant, "state": state, "search": search}
    tables = "runs r LEFT JOIN sessions s ON s.session_id = r.session_id"
    rows = db.execute(
        f"""SELECT r.* FROM {tables} WHERE {where}
            ORDER BY r.requested_at DESC, r.model_id LIMIT :limit OFFSET :offset""",
        {**values, "limit": limit, "offset": offset},
    )
    page = [runs.from_row(row) for row in rows]
    (total,) = db.execute(f"SELECT COUNT(*) FROM {tables} WHERE {where}", values).fetchone()
    return page, total


def runs_of_session(db: Transaction, session_id: str) -> list[str]:
    rows = db.execute(
        "SELECT model_id FROM runs WHERE session_id = ? ORDER BY created_at, model_id",
        (session_id,),
    )
    return [model_id for (model_id,) in rows]


def is_published(db: Transaction, column: str, value: str) -> bool:
    """Whether someone published a checkpoint of this run (`model_id`) or `session_id`."""
    row = db.execute(
        f"SELECT 1 FROM checkpoints WHERE public = 1 AND {column} = ? LIMIT 1", (value,)
    ).fetchone()
    return row is not None


def session_page(
    db: Transaction, tenant: str | None, limit: int, offset: int, *, accessible: bool
) -> list[str]:
    where = _visible("sessions", "session_id", tenant, accessible)
    rows = db.execute(
        f"""SELECT session_id FROM sessions WHERE {where}
            ORDER BY created_at DESC, session_id DESC LIMIT ? OFFSET ?""",
        (tenant, limit, offset),
    )
    return [session_id for (session_id,) in rows]


@dataclass(frozen=True, slots=True)
class Search:
    """What sessions to look for. `statuses` are (status, reasons or None for any);
    `before` is the (created_at, session_id) of the last session already seen."""

    limit: int  # sessions of a page
    accessible: bool = False  # those with something published, too
    owners: Sequence[str] | None = None  # tenants; None: any that may be seen
    session_id: str | None = None  # this one only
    display_name: str | None = None  # exactly this
    project_ids: Sequence[str] | None = None  # any of these
    user_metadata: Mapping[str, str] = field(default_factory=dict)  # all of these
    statuses: Sequence[tuple[str, Sequence[str] | None]] | None = None  # any of these
    before: tuple[float, str] | None = None  # where the page before ended


def search_sessions(db: Transaction, tenant: str | None, search: Search) -> list[SessionRow]:
    clauses = [_visible("sessions", "session_id", tenant, search.accessible)]
    values: list[Any] = [tenant]
    for clause, more in _filters(search):
        clauses.append(f"({clause})")
        values += more
    rows = db.execute(
        f"""SELECT * FROM sessions WHERE {" AND ".join(clauses)}
            ORDER BY created_at DESC, session_id DESC LIMIT ?""",
        (*values, search.limit),
    )
    return [sessions.from_row(row) for row in rows]


def set_session_project(db: Transaction, session_id: str, project_id: str) -> None:
    db.execute("UPDATE sessions SET project_id = ? WHERE session_id = ?", (project_id, session_id))


def _visible(table: str, column: str, tenant: str | None, accessible: bool) -> str:
    """A clause that takes the tenant as its value."""
    if tenant is None:
        return "CAST(? AS TEXT) IS NULL"
    published = _PUBLISHED.format(column=column, table=table)
    return f"(tenant = ? OR {published})" if accessible else "tenant = ?"


def _filters(search: Search) -> list[tuple[str, list[Any]]]:
    filters: list[tuple[str, list[Any]]] = [
        _named(search),
        *(_metadata(pair) for pair in search.user_metadata.items()),
    ]
    if search.project_ids is not None:
        filters.append(_one_of("project_id", search.project_ids))
    if search.owners is not None:
        filters.append(_one_of("tenant", search.owners))
    if search.statuses is not None:
        filters.append(_any_status(search.statuses))
    if search.before is not None:
        filters.append(_older(*search.before))
    return filters


def _older(created_at: float, session_id: str) -> tuple[str, list[Any]]:
    """Behind a session in the list. Its own row has the exact time, a client's text may not."""
    exact = "COALESCE((SELECT created_at FROM sessions WHERE session_id = ?), ?)"
    return f"(created_at, session_id) < ({exact}, ?)", [session_id, created_at, session_id]


def _named(search: Search) -> tuple[str, list[str]]:
    """Either the exact id, or a name that holds every word, whatever its case."""
    words = (search.display_name or "").lower().split()
    held = " AND ".join("instr(lower(display_name), ?) > 0" for _ in words)
    either = [f"({held})"] if words else []
    values = list(words)
    if search.session_id is not None:
        either.append("session_id = ?")
        values.append(search.session_id)
    return (" OR ".join(either) or "1 = 1", values)


def _metadata(pair: tuple[str, str]) -> tuple[str, list[str]]:
    found = "SELECT 1 FROM json_each(user_metadata) WHERE key = ? AND value = ?"
    return f"EXISTS ({found})", list(pair)


def _one_of(column: str, values: Sequence[str]) -> tuple[str, list[str]]:
    if not values:
        return "1 = 0", []
    marks = ", ".join("?" * len(values))
    return f"{column} IN ({marks})", list(values)


def _any_status(
    statuses: Sequence[tuple[str, Sequence[str] | None]],
) -> tuple[str, list[str]]:
    clauses, values = ["1 = 0"], []
    for status, reasons in statuses:
        clause, more = "status = ?", [status]
        if reasons is not None:
            inside, listed = _one_of("reason", reasons)
            clause, more = f"{clause} AND {inside}", [status, *listed]
        clauses.append(f"({clause})")
        values += more
    return " OR ".join(clauses), values
