"""What a dashboard looks up: runs with sparklines, histories, checkpoints, samples, use.

Reads only, off the event loop. A tenant sees its own, an operator everything; what is another's is
as if it did not exist. The shapes are those of `docs/dashboard-api.md`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Literal

from tinkex.server.clock import Clock
from tinkex.server.recording import history
from tinkex.server.recording.history import Wanted
from tinkex.server.recording.recorder import RECENT
from tinkex.server.recording.samples import SampleRing, decode
from tinkex.server.recording.steps import values_of
from tinkex.server.refusals import NotFound
from tinkex.server.storage.database import (
    Store,
    checkpoints,
    kept_samples,
    listing,
    points,
    runs,
    sessions,
    usage,
)
from tinkex.server.storage.database.checkpoints import CheckpointRow
from tinkex.server.storage.database.kept_samples import KeptRow
from tinkex.server.storage.database.points import SERVER
from tinkex.server.storage.database.runs import RunRow
from tinkex.server.storage.database.transactions import Transaction
from tinkex.server.tenancy.usage import Meter
from tinkex.server.views.json_shapes import cursor, run_name, texts
from tinkex.server.views.metric_help import help_for
from tinkex.server.views.now import Now
from tinkex.server.views.queries import Page
from tinkex.server.views.token_texts import TokenTexts
from tinkex.server.views.viewers import Viewer
from tinkex.types.tinker_path import SCHEME

RunState = Literal["any", "live", "ended"]
SPARK = 60
_NEWEST = 2**62
_HOUR = 3600


class Dashboard:
    """The reading side of the dashboard."""

    def __init__(
        self,
        store: Store,
        meter: Meter,
        samples: SampleRing,
        now: Now,
        texts_of: TokenTexts,
        clock: Clock,
    ) -> None:
        self._store = store
        self._meter = meter
        self._samples = samples
        self._now = now
        self._texts = texts_of
        self._clock = clock

    # ---- runs

    async def runs(
        self, viewer: Viewer, page: Page, state: RunState, search: str | None
    ) -> dict[str, Any]:
        advice = await self._advice(viewer)

        def work(db: Transaction) -> tuple[list[dict[str, Any]], int]:
            rows, total = listing.search_runs(
                db, viewer.scope, page.limit, page.offset, state, search
            )
            return [_run(db, row, advice.get(row.model_id, [])) for row in rows], total

        shown, total = await self._store.browse(viewer.tenant, work)
        return {"runs": shown, "cursor": cursor(page.offset, page.limit, total)}

    async def run(self, viewer: Viewer, run: str) -> dict[str, Any]:
        advice = await self._advice(viewer)

        def work(db: Transaction) -> dict[str, Any]:
            row = _seen(db, viewer, run)
            saved = [each for each in checkpoints.of_run(db, run) if self._lasts(each)]
            shown = _run(db, row, advice.get(run, []))
            return {
                **shown,
                "metrics": _metrics(db, run),
                "checkpoints": [_checkpoint(each, shown["name"]) for each in saved],
                "children": _children(db, row),
                "user_metadata": texts(row.user_metadata),
            }

        return await self._store.browse(viewer.tenant, work)

    async def history(self, viewer: Viewer, run: str, wanted: Wanted) -> dict[str, Any]:
        def work(db: Transaction) -> dict[str, Any]:
            _seen(db, viewer, run)
            return {"run": run, **history.read(db, run, wanted)}

        return await self._store.browse(viewer.tenant, work)

    async def server_history(self, viewer: Viewer, wanted: Wanted) -> dict[str, Any]:
        found = await self._store.browse(viewer.tenant, history.read, SERVER, wanted)
        return {"run": None, **found}

    async def _advice(self, viewer: Viewer) -> dict[str, list[dict[str, Any]]]:
        """Advice by run; made here, on the event loop that owns what it looks at."""
        found: dict[str, list[dict[str, Any]]] = {}
        for each in await self._now.advice(viewer):
            if each["run"] is not None:
                found.setdefault(each["run"], []).append(each)
        return found

    # ---- checkpoints, samples, use

    async def checkpoints(self, viewer: Viewer, page: Page) -> dict[str, Any]:
        def work(db: Transaction) -> tuple[list[dict[str, Any]], int]:
            rows, total = checkpoints.of_tenant(db, viewer.scope, page.limit, page.offset)
            kept = [row for row in rows if self._lasts(row)]
            names = _names(db, viewer, {row.model_id for row in kept})
            return [_checkpoint(row, names.get(row.model_id)) for row in kept], total

        shown, total = await self._store.browse(viewer.tenant, work)
        return {"checkpoints": shown, "cursor": cursor(page.offset, page.limit, total)}

    async def samples(
        self, viewer: Viewer, run: str | None, model: str | None, before: int | None, limit: int
    ) -> dict[str, Any]:
        await self._samples.flush()

        def work(db: Transaction) -> list[dict[str, Any]]:
            if run is not None:
                _seen(db, viewer, run)
            rows = kept_samples.page(
                db, viewer.scope, run, model, _NEWEST if before is None else before, limit
            )
            names = _names(db, viewer, {row.source.model_id for row in rows})
            return [self._sample(db, row, names.get(row.source.model_id)) for row in rows]

        return {
            "recording": self._samples.recording,
            "samples": await self._store.browse(viewer.tenant, work),
        }

    def _sample(self, db: Transaction, row: KeptRow, run_name: str | None) -> dict[str, Any]:
        kept = decode(row.data)
        saved = checkpoints.get(db, kept["weights"]) if kept["weights"] else None
        model = row.source.base_model
        return {
            "id": row.id,
            "at": row.at,
            "tenant": row.source.tenant,
            "run": row.source.model_id,
            "run_name": run_name,
            "model": model,
            **kept,
            "step": None if saved is None else saved.step,
            "prompt": {**kept["prompt"], **self._texts.of(model, kept["prompt"]["tokens"])},
            "output": {**kept["output"], **self._texts.of(model, kept["output"]["tokens"])},
        }

    async def usage(self, viewer: Viewer, hours: int) -> dict[str, Any]:
        await self._meter.flush()
        since = usage.hour_of(self._clock.now()) - (hours - 1) * _HOUR

        def work(db: Transaction) -> dict[str, Any]:
            stored = checkpoints.stored(db, viewer.scope)
            return {
                "usage": [asdict(hour) for hour in usage.hourly(db, viewer.scope, since)],
                "storage": [
                    {"tenant": tenant, "checkpoints": count, "bytes": size}
                    for tenant, count, size in stored
                ],
            }

        return await self._store.browse(viewer.tenant, work)

    async def session_owner(self, viewer: Viewer, session_id: str) -> str:
        """Whose session this is, if the viewer may see it."""
        row = await self._store.browse(viewer.tenant, sessions.get, session_id)
        if row is None or not viewer.sees(row.tenant):
            raise NotFound(f"no session {session_id[:200]!r}")
        return row.tenant

    def _lasts(self, row: CheckpointRow) -> bool:
        return not row.expired(self._clock.now())


def _named(db: Transaction, row: RunRow) -> str | None:
    session = sessions.get(db, row.session_id)
    return run_name(row, None if session is None else session.display_name)


def _names(
    db: Transaction, viewer: Viewer, ids: Iterable[str | None]
) -> dict[str | None, str | None]:
    """The names of those of these runs that a viewer may see."""
    rows = [runs.get(db, each) for each in ids if each is not None]
    return {row.model_id: _named(db, row) for row in rows if row and viewer.sees(row.tenant)}


def _run(db: Transaction, row: RunRow, advice: list[dict[str, Any]]) -> dict[str, Any]:
    last = next((each for each in points.newest(db, row.model_id, 2) if each.done), None)
    return {
        "run": row.model_id,
        "name": _named(db, row),
        "note": row.note,
        "tenant": row.tenant,
        "session": row.session_id,
        "model": row.base_model,
        "rank": row.rank,
        "state": row.state,
        "created_at": row.created_at,
        "last_request_at": row.requested_at,
        "ended_at": row.ended_at,
        "step": row.step,
        "last_loss": row.loss,
        "tokens": row.tokens,
        "tokens_per_s": None if last is None else _short(last.values.get("tokens_per_s")),
        "parent": row.parent,
        "spark": history.spark(db, row.model_id, "loss", SPARK),
        "advice": advice,
    }


def _seen(db: Transaction, viewer: Viewer, run: str) -> RunRow:
    row = runs.get(db, run)
    if row is None or not viewer.sees(row.tenant):
        raise NotFound(f"no training run {run[:200]!r}")
    return row


def _metrics(db: Transaction, run: str) -> list[dict[str, Any]]:
    """Every metric with its newest value."""
    recent = points.newest(db, run, RECENT)
    newest = {name: value for point in reversed(recent) for name, value in values_of(point).items()}
    return [
        {"name": name, "last": _short(newest.get(name)), "help": help_for(name)}
        for name in history.names(db, run)
    ]


def _short(value: float | None) -> float | None:
    """As a history gives it."""
    return None if value is None else float(f"{value:.7g}")


def _children(db: Transaction, row: RunRow) -> list[dict[str, Any]]:
    """The runs of its owner that continue from its checkpoints."""
    found = runs.children(db, row.tenant, f"{SCHEME}{row.model_id}/")
    return [
        {"run": each.model_id, "name": run_name(each, None), "parent": each.parent}
        for each in found
    ]


def _checkpoint(row: CheckpointRow, run_name: str | None) -> dict[str, Any]:
    return {
        "path": row.path,
        "run": row.model_id,
        "run_name": run_name,
        "tenant": row.tenant,
        "model": row.base_model,
        "kind": row.kind,
        "name": row.name,
        "step": row.step,
        "size_bytes": row.size_bytes,
        "public": row.public,
        "created_at": row.created_at,
        "expires_at": row.expires_at,
    }
