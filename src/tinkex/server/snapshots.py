"""When a run's state is written down, and what that makes superfluous.

A snapshot is a save with everything in it, sent between two operations of the run. Once it is
sealed and its row committed, the bodies of the operations it covers are dropped and the snapshot
before it goes. Training goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path

from tinkex.engine.messages import SaveResult, SaveRun
from tinkex.server.blobs import Folders
from tinkex.server.clock import Clock
from tinkex.server.pins import Pins
from tinkex.server.runs import Run
from tinkex.server.segments import BlobStore
from tinkex.server.settings import Settings
from tinkex.server.store import Store
from tinkex.server.store import operations as operations_table
from tinkex.server.store import snapshots as table
from tinkex.server.store.snapshots import SnapshotRow
from tinkex.server.supervisor import CommandFailed, Engine, EngineLost

logger = logging.getLogger(__name__)


class Snapshots:
    """Takes and keeps the newest snapshot of every run."""

    def __init__(
        self,
        store: Store,
        blobs: BlobStore,
        folders: Folders,
        pins: Pins,
        clock: Clock,
        settings: Settings,
    ) -> None:
        self._store = store
        self._blobs = blobs
        self._folders = folders
        self._pins = pins
        self._clock = clock
        self._settings = settings
        self._numbers = itertools.count()

    def is_due(self, run: Run) -> bool:
        """Whether enough has happened since the last one to write the run down."""
        scheduling = self._settings.scheduling
        if run.log.begun_through <= run.log.base:
            return False
        waited = self._clock.monotonic() - run.snapshot_at
        return (
            run.steps_since_snapshot >= scheduling.snapshot_steps
            or run.log.retained_bytes >= scheduling.snapshot_payload_bytes
            or waited >= self._settings.timings.snapshot_interval_s
        )

    async def take(self, run: Run, engine: Engine, on_sent: Callable[[], None]) -> bool:
        """Write the run down as it is after everything sent so far. False if that failed; raises
        `EngineLost` if the engine died meanwhile."""
        through, life = run.log.begun_through, run.generation
        run.steps_since_snapshot, run.snapshot_at = 0, self._clock.monotonic()
        draft = await asyncio.to_thread(self._folders.begin)
        try:
            result = await self._save(run, engine, draft, on_sent)
            while not run.log.settled(through):
                if run.generation != life:
                    # What it waits for was lost, and comes back only once this has ended.
                    raise EngineLost("the engine died before the snapshot was complete")
                await run.progress()
            name = await asyncio.to_thread(self._folders.seal, draft)
        except (CommandFailed, OSError) as error:
            logger.error("snapshot of %s failed: %s", run.model_id, error)
            self._folders.abandon(draft)
            return False
        except BaseException:
            self._folders.abandon(draft)
            raise
        await self._commit(run, through, name, result)
        return True

    async def _save(
        self, run: Run, engine: Engine, draft: Path, on_sent: Callable[[], None]
    ) -> SaveResult:
        op = f"{run.model_id}:snapshot:{next(self._numbers)}"
        answer = await engine.send(SaveRun(op, run.model_id, str(draft), training=True))
        on_sent()
        result = await answer
        assert isinstance(result, SaveResult)
        return result

    async def _commit(self, run: Run, through: int, name: str, result: SaveResult) -> None:
        row = SnapshotRow(
            run.model_id, through, name, result.step, result.size_bytes, self._clock.now()
        )

        def work(db: sqlite3.Connection) -> list[str]:
            table.put(db, row)
            return operations_table.drop_payloads(db, run.model_id, through)

        blobs = await self._store.write(work)
        before, run.snapshot = run.snapshot, row
        covered = run.log.cover(through)
        loads = [
            entry.request_id for entry in covered if entry.kind in ("load_weights", "create_from")
        ]
        await asyncio.to_thread(self._discard, blobs, before, loads)

    def _discard(self, blobs: list[str], before: SnapshotRow | None, loads: list[str]) -> None:
        for blob in blobs:
            self._blobs.delete(blob)
        if before is not None:
            self._folders.delete(before.folder)
        for request_id in loads:
            self._pins.drop(request_id)

    def path(self, run: Run) -> Path | None:
        """The folder a lost run is rebuilt from."""
        return None if run.snapshot is None else self._folders.path(run.snapshot.folder)
