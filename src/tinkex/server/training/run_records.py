"""Changes to a run from outside: renaming, a note, stopping, deletion.

These are additions of this server; the protocol does not have them. A live run must be stopped
before it can be deleted, so that a slip of the hand destroys nobody's training.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tinkex.server.checkpoints.service import Checkpoints
from tinkex.server.clock import Clock
from tinkex.server.operations.runs import Runs
from tinkex.server.recording.recorder import Recorder
from tinkex.server.refusals import NotFound, Refusal
from tinkex.server.storage.database import audit, curves, kept_samples, operations, points
from tinkex.server.storage.database import runs as table
from tinkex.server.storage.database.runs import RunRow
from tinkex.server.storage.database.transactions import Transaction
from tinkex.server.storage.home_storage import HomeStorage


class RunRecords:
    """Changes to the runs of one home, for their owners."""

    def __init__(
        self,
        storage: HomeStorage,
        runs: Runs,
        checkpoints: Checkpoints,
        clock: Clock,
        on_stopped: Callable[[], Awaitable[None]],
        recorder: Recorder,
    ) -> None:
        self._store, self._blobs = storage.store, storage.blobs
        self._runs = runs
        self._checkpoints = checkpoints
        self._clock = clock
        self._on_stopped = on_stopped
        self._recorder = recorder

    async def rename(self, tenant: str, model_id: str, name: str | None) -> None:
        """Give a run a name; None removes it."""
        if name is not None and (not name.strip() or not name.isprintable()):
            raise Refusal("name must be one line of text that can be printed")

        def work(db: Transaction) -> None:
            row = _owned(db, tenant, model_id)
            table.set_name(db, model_id, name)
            self._audit(db, row, "run.rename", {"name": name, "from": row.name})

        await self._store.write(work)
        if (live := self._runs.find(model_id)) is not None:
            live.rename(name)
        self._recorder.changed(tenant, model_id, "changed")

    async def note(self, tenant: str, model_id: str, note: str | None) -> None:
        """Attach a note to a run; None removes it."""

        def work(db: Transaction) -> None:
            _owned(db, tenant, model_id)
            table.set_note(db, model_id, note)

        await self._store.write(work)
        self._recorder.changed(tenant, model_id, "changed")

    async def stop(self, tenant: str, model_id: str) -> None:
        """Stop a run: pending work fails, nothing new is accepted, checkpoints stay. Stopping twice
        is no error."""

        def work(db: Transaction) -> None:
            row = _owned(db, tenant, model_id)
            if row.state == "live":
                table.stop(db, model_id)
                self._audit(db, row, "run.stop", {})

        await self._store.write(work)
        live = self._runs.find(model_id)
        if live is not None:
            live.stop()
            await self._on_stopped()

    async def delete(self, tenant: str, model_id: str) -> None:
        """Forget an ended run and all its checkpoints. Samplers keep their weights."""

        def work(db: Transaction) -> list[str]:
            row = _owned(db, tenant, model_id)
            if row.state != "ended":
                raise Refusal(f"training run {model_id} is {row.state}: stop it first")
            self._checkpoints.forget_run(db, model_id)
            blobs = operations.delete_run(db, model_id)
            table.delete(db, model_id)
            points.delete(db, [model_id])
            curves.delete(db, [model_id])
            kept_samples.delete_runs(db, [model_id])
            self._audit(db, row, "run.delete", {})
            return blobs

        blobs = await self._store.write(work)
        self._recorder.changed(tenant, model_id, "deleted")
        for name in blobs:
            await asyncio.to_thread(self._blobs.delete, name)

    def _audit(self, db: Transaction, row: RunRow, event: str, details: Mapping[str, Any]) -> None:
        now = self._clock.now()
        audit.add(db, audit.AuditRow(now, row.tenant, "checkpoints", event, details, row.model_id))


def _owned(db: Transaction, tenant: str, model_id: str) -> RunRow:
    row = table.get(db, model_id)
    if row is None or row.tenant != tenant:
        raise NotFound(f"no training run {model_id[:200]!r}")
    return row
