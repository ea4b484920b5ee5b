"""What people look up: runs, checkpoints, sessions, use and the audit log, as protocol answers.

Reads only, except a session's project. A tenant sees its own and, where it asks for what is
accessible, what others published. Knows no HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal, NamedTuple

from tinkex.server.clock import Clock
from tinkex.server.operations.runs import Runs
from tinkex.server.refusals import NotFound, Refusal
from tinkex.server.storage.database import (
    Store,
    audit,
    checkpoints,
    listing,
    runs,
    samplers,
    sessions,
)
from tinkex.server.storage.database.checkpoints import CheckpointRow
from tinkex.server.storage.database.listing import Search
from tinkex.server.storage.database.runs import RunRow
from tinkex.server.storage.database.transactions import Transaction
from tinkex.server.tenancy.usage import Meter
from tinkex.server.views import json_shapes as show

Scope = Literal["owned", "accessible"]
MOST_AUDIT_ENTRIES = 10_000
LONGEST_USAGE = timedelta(days=14)
_HOUR_S = 3600


class Page(NamedTuple):
    """Which part of a list is asked for."""

    limit: int
    offset: int


class Browsing:
    """The reading side of one home. Lists for no tenant are for who owns the home: everything."""

    def __init__(self, store: Store, live: Runs, meter: Meter, clock: Clock) -> None:
        self._store = store
        self._live = live
        self._meter = meter
        self._clock = clock

    # ---- runs and checkpoints

    async def training_runs(
        self, tenant: str | None, page: Page, scope: Scope, project_id: str | None
    ) -> dict[str, Any]:
        accessible = scope == "accessible"

        def work(db: Transaction) -> tuple[list[dict[str, Any]], int]:
            rows, total = listing.run_page(
                db,
                tenant,
                page.limit,
                page.offset,
                accessible=accessible,
                project_id=project_id,
            )
            return [self._shown_run(db, row, tenant or row.tenant) for row in rows], total

        shown, total = await self._store.browse(tenant, work)
        return {"training_runs": shown, "cursor": show.cursor(page.offset, page.limit, total)}

    async def training_run(self, tenant: str, model_id: str, scope: Scope) -> dict[str, Any]:
        def work(db: Transaction) -> dict[str, Any]:
            return self._shown_run(db, self._run(db, tenant, model_id, scope), tenant)

        return await self._store.browse(tenant, work)

    async def checkpoints_of_run(self, tenant: str, model_id: str) -> dict[str, Any]:
        def work(db: Transaction) -> list[CheckpointRow]:
            row = self._run(db, tenant, model_id, "accessible")
            return self._visible(db, row, tenant)

        rows = await self._store.browse(tenant, work)
        shown = [show.checkpoint(row) for row in rows]
        return {"checkpoints": shown, "cursor": show.cursor(0, len(shown), len(shown))}

    async def checkpoints(self, tenant: str | None, page: Page) -> dict[str, Any]:
        rows, total = await self._store.browse(
            tenant, checkpoints.of_tenant, tenant, page.limit, page.offset
        )
        shown = [show.checkpoint(row) for row in rows if not row.expired(self._clock.now())]
        return {"checkpoints": shown, "cursor": show.cursor(page.offset, page.limit, total)}

    def _run(self, db: Transaction, tenant: str, model_id: str, scope: Scope) -> RunRow:
        row = runs.get(db, model_id)
        if row is None or not (
            row.tenant == tenant
            or (scope == "accessible" and listing.is_published(db, "model_id", model_id))
        ):
            raise NotFound(f"no training run {model_id[:200]!r}")
        return row

    def _visible(self, db: Transaction, run: RunRow, tenant: str) -> list[CheckpointRow]:
        now = self._clock.now()
        return [
            row
            for row in checkpoints.of_run(db, run.model_id)
            if not row.expired(now) and (row.public or row.tenant == tenant)
        ]

    def _shown_run(self, db: Transaction, row: RunRow, tenant: str) -> dict[str, Any]:
        live = self._live.find(row.model_id)
        broken = live is not None and live.broken is not None
        gap = None if live is None or row.tenant != tenant else live.gaps.gap
        session = sessions.get(db, row.session_id)
        return show.training_run(
            row,
            self._visible(db, row, tenant),
            corrupted=broken,
            gap=gap,
            is_owner=row.tenant == tenant,
            session_name=None if session is None else session.display_name,
        )

    # ---- sessions

    async def sessions(self, tenant: str | None, page: Page, scope: Scope) -> dict[str, Any]:
        accessible = scope == "accessible"
        found = await self._store.browse(
            tenant,
            lambda db: listing.session_page(
                db, tenant, page.limit, page.offset, accessible=accessible
            ),
        )
        return {"sessions": found}

    async def session(self, tenant: str, session_id: str, scope: Scope) -> dict[str, Any]:
        def work(db: Transaction) -> dict[str, Any]:
            row = sessions.get(db, session_id)
            if row is None or not (
                row.tenant == tenant
                or (scope == "accessible" and listing.is_published(db, "session_id", session_id))
            ):
                raise NotFound(f"no session {session_id[:200]!r}")
            return {
                "training_run_ids": listing.runs_of_session(db, session_id),
                "sampler_ids": [each.sampler_id for each in samplers.of_session(db, session_id)],
                "user_metadata": show.texts(row.user_metadata),
                "display_name": row.display_name,
            }

        return await self._store.browse(tenant, work)

    async def search(self, tenant: str | None, search: Search) -> dict[str, Any]:
        """A page of sessions and, when it is full, the cursor of the next."""

        def work(db: Transaction) -> list[dict[str, Any]]:
            rows = listing.search_sessions(db, tenant, search)
            sizes = checkpoints.of_sessions(db, [row.session_id for row in rows])
            return [show.session_summary(row, *sizes.get(row.session_id, (0, 0))) for row in rows]

        shown = await self._store.browse(tenant, work)
        following = None
        if len(shown) == search.limit:
            last = shown[-1]
            following = {
                "last_created_at": last["created_at"],
                "last_session_id": last["session_id"],
            }
        return {"sessions": shown, "next_cursor": following}

    async def assign_project(self, tenant: str, session_id: str, project_id: str) -> None:
        """Move a session, and the checkpoints of its runs, into a project."""
        now = self._clock.now()

        def work(db: Transaction) -> None:
            row = sessions.get(db, session_id)
            if row is None or row.tenant != tenant:
                raise NotFound(f"no session {session_id[:200]!r}")
            listing.set_session_project(db, session_id, project_id)
            checkpoints.set_project(db, session_id, project_id)
            details = {"session_id": session_id, "project_id": project_id, "from": row.project_id}
            audit.add(db, audit.AuditRow(now, tenant, "projects", "project.assign", details))

        await self._store.write(work)

    # ---- use and audit

    async def usage(self, tenant: str, start: datetime, end: datetime) -> dict[str, Any]:
        """Hourly use in [start, end), which are whole UTC hours at most 14 days apart."""
        _check_window(start, end)
        uses = await self._meter.between(tenant, start.timestamp(), end.timestamp())
        named = {use.source.session_id for use in uses if use.source.session_id}
        return {
            "data": [show.usage_event(use) for use in uses],
            "sessions": await self._store.browse(tenant, _metadata_of, sorted(named)),
            "cost_data_through": None,
        }

    async def storage(self, tenant: str, project_id: str | None) -> dict[str, Any]:
        rows = await self._store.browse(tenant, checkpoints.storage_of, tenant, project_id)
        items = [show.storage_item(tenant, project, count, size) for project, count, size in rows]
        return {"effective_rate_usd_per_gigabyte_month": None, "data": items}

    async def audit(self, tenant: str, category: str | None, day: date | None) -> dict[str, Any]:
        """The newest events, of one UTC day if asked, oldest first."""
        start, end = 0.0, self._clock.now() + _HOUR_S
        if day is not None:
            midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
            start, end = midnight.timestamp(), midnight.timestamp() + 24 * _HOUR_S
        rows = await self._store.browse(
            tenant, audit.between, tenant, category, start, end, MOST_AUDIT_ENTRIES
        )
        return {"entries": [show.audit_entry(row) for row in rows]}


def _check_window(start: datetime, end: datetime) -> None:
    if not start < end or end - start > LONGEST_USAGE:
        raise Refusal("ending_before must lie after starting_on, by 14 days at most")
    for name, moment in (("starting_on", start), ("ending_before", end)):
        if moment.timestamp() % _HOUR_S:
            raise Refusal(f"{name} is {moment.isoformat()}: give a whole UTC hour")


def _metadata_of(db: Transaction, session_ids: Sequence[str]) -> dict[str, Any]:
    rows = [sessions.get(db, session_id) for session_id in session_ids]
    return {
        row.session_id: {"user_metadata": show.texts(row.user_metadata)}
        for row in rows
        if row is not None
    }
