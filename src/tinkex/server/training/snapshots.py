"""Snapshots: when a run's state is saved, and what that makes superfluous.

A snapshot is a complete save, sent between two operations of the run. It is hashed, sealed and its
row committed while training goes on. The one before it stays, with the bodies of the operations
between the two. So a run whose newest snapshot is damaged goes back to that one (or to its
beginning) and repeats more. Everything older is dropped. Where this would keep too much, only the
newest snapshot stays.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from tinkex.engine.messages import SaveResult, SaveRun, WeightsRef
from tinkex.server.clock import Clock
from tinkex.server.engines.engine import CommandFailed, Engine, EngineLost
from tinkex.server.operations.kinds import PINNING
from tinkex.server.operations.run import Run
from tinkex.server.operations.runs import Runs
from tinkex.server.settings import Settings
from tinkex.server.storage import manifest
from tinkex.server.storage.database import operations as operations_table
from tinkex.server.storage.database import runs as runs_table
from tinkex.server.storage.database import snapshots as table
from tinkex.server.storage.database.snapshots import SnapshotRow
from tinkex.server.storage.database.transactions import Transaction
from tinkex.server.storage.folders import fill
from tinkex.server.storage.home_storage import HomeStorage
from tinkex.server.storage.store_threads import at_store

logger = logging.getLogger(__name__)

_LAST = 2**62
"""Greater than every seq_id."""


class Freed(NamedTuple):
    """What a new snapshot, or the end of its run, makes superfluous."""

    blobs: list[str]
    folders: list[str]
    loads: list[str]


class Snapshots:
    """Takes and keeps the newest snapshots of every run. `damaged` counts those found damaged."""

    def __init__(
        self,
        runs: Runs,
        storage: HomeStorage,
        clock: Clock,
        settings: Settings,
    ) -> None:
        self.damaged = 0
        self._runs = runs
        self._store, self._blobs = storage.store, storage.blobs
        self._folders, self._pins = storage.snapshots, storage.pins
        self._clock = clock
        self._settings = settings
        self._numbers = itertools.count()
        self._taking: set[str] = set()

    def is_due(self, run: Run) -> bool:
        """Whether enough has happened since the last one to take another."""
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
        """Save the run as it is after everything sent so far. False if that failed; raises
        `EngineLost` if the engine died meanwhile."""
        if run.log.begun_through <= run.log.base:
            return True  # nothing has happened since the last one
        if run.model_id in self._taking:
            return False  # two at once could end in the wrong order
        self._taking.add(run.model_id)
        try:
            return await self._take(run, engine, on_sent)
        finally:
            self._taking.discard(run.model_id)

    async def _take(self, run: Run, engine: Engine, on_sent: Callable[[], None]) -> bool:
        through, residence = run.log.begun_through, run.residence
        run.begin_snapshot(self._clock.monotonic())
        draft = await asyncio.to_thread(self._folders.begin)
        try:
            result = await self._save(run, engine, run.life, draft, on_sent)
            while not run.log.settled(through):
                if run.residence != residence:
                    # What it waits for was lost, and comes back only once this has ended.
                    raise EngineLost("the engine died before the snapshot was complete")
                await run.progress()
            name, digest = await at_store(self._seal, draft, result)
        except (CommandFailed, OSError) as error:
            logger.error("snapshot of %s failed: %s", run.model_id, error)
            self._folders.abandon(draft)
            return False
        except BaseException:
            self._folders.abandon(draft)
            raise
        row = SnapshotRow(
            run.model_id, through, name, result.step, result.size_bytes, self._clock.now(), digest
        )
        await self._commit(run, row)
        return True

    def _seal(self, draft: Path, saved: SaveResult) -> tuple[str, str]:
        """Hash a folder and make it durable. Returns its name and digest."""
        fill(draft, saved)
        digest = manifest.write(draft).digest
        return self._folders.seal(draft), digest

    async def _save(
        self, run: Run, engine: Engine, life: int, draft: Path, on_sent: Callable[[], None]
    ) -> SaveResult:
        op = f"{run.model_id}:snapshot:{next(self._numbers)}"
        answer = await engine.send(SaveRun(op, run.model_id, str(draft), training=True), life)
        on_sent()
        result = await answer
        assert isinstance(result, SaveResult)
        return result

    async def _commit(self, run: Run, row: SnapshotRow) -> None:
        through, former = row.seq_id, run.snapshot
        spare = sum(e.stored_bytes for number, e in run.log.entries.items() if number <= through)
        room = self._settings.scheduling.fallback_payload_bytes
        keeps = self._runs.spare_bytes - run.spare_bytes + spare <= room
        before = former if keeps else None
        floor = through if not keeps else -1 if before is None else before.seq_id

        def work(db: Transaction) -> Freed:
            folders = table.put(db, row, before)
            loads = operations_table.kept_through(db, run.model_id, floor, PINNING)
            blobs = operations_table.drop_payloads(db, run.model_id, floor)
            return Freed(blobs, folders, loads)

        freed = await self._store.write(work)
        run.cover(row, before, spare if keeps else 0)
        await self.discard(freed)

    async def end(self, run: Run) -> Freed:
        """Record that a run is over; what was kept for it is for `discard`."""
        now = self._clock.now()

        def work(db: Transaction) -> Freed:
            runs_table.end(db, run.model_id, now)
            table.delete(db, run.model_id)
            loads = operations_table.kept_through(db, run.model_id, _LAST, PINNING)
            blobs = operations_table.drop_payloads(db, run.model_id, _LAST)
            folders = [each.folder for each in (run.snapshot, run.before) if each is not None]
            return Freed(blobs, folders, loads)

        return await self._store.write(work)

    async def discard(self, freed: Freed) -> None:
        await at_store(self._discard, freed)

    def _discard(self, freed: Freed) -> None:
        for blob in freed.blobs:
            self._blobs.delete(blob)
        for folder in freed.folders:
            self._folders.delete(folder)
        for request_id in freed.loads:
            self._pins.drop(request_id)

    async def reference(self, snapshot: SnapshotRow) -> WeightsRef:
        """The folder a lost run is rebuilt from, as engines are given it."""
        return await self._folders.reference(snapshot.folder, snapshot.digest or "")

    async def linked(self, snapshot: SnapshotRow) -> WeightsRef | None:
        """The same for an engine elsewhere, if the folder is not on this disk and need not be
        fetched to it: the engine checks its bytes. None if that is not possible."""
        if not snapshot.digest or self._folders.is_here(snapshot.folder):
            return None
        try:
            found = await self._folders.linked(snapshot.folder)
        except (manifest.CorruptCheckpoint, OSError):
            return None  # `problem` says which
        return found if found is not None and found.digest == snapshot.digest else None

    def using(self, snapshot: SnapshotRow) -> AbstractContextManager[None]:
        """Keep a snapshot on this disk for the length of a `with`."""
        return self._folders.using(snapshot.folder)

    async def problem(self, snapshot: SnapshotRow) -> str | None:
        """What is wrong with a snapshot's bytes, in words."""
        if not snapshot.digest:
            return None
        try:
            folder = await self._folders.here(snapshot.folder)
            await asyncio.to_thread(manifest.verify, folder, snapshot.digest)
        except (manifest.CorruptCheckpoint, OSError) as error:
            return str(error)
        return None

    async def go_back(self, run: Run, problem: str) -> bool:
        """Replace a run's newest snapshot by the one before it, or by the run's beginning. False if
        the operations since then are no longer kept. The next snapshot replaces the damaged one;
        until then a restarted server finds the damage again."""
        damaged, before = run.snapshot, run.before
        assert damaged is not None
        self.damaged += 1
        base = -1 if before is None else before.seq_id
        rows = await self._store.query(operations_table.after, run.model_id, base)
        covered = [row for row in rows if row.seq_id <= damaged.seq_id]
        if not covered or await self._store.query(
            operations_table.lacks_body, run.model_id, base, damaged.seq_id
        ):
            logger.error("the snapshot of %s is damaged: %s", run.model_id, problem)
            return False
        run.log.uncover(base, [self._runs.entry(row) for row in covered])
        run.fall_back()
        logger.error(
            "the snapshot of %s at step %d is damaged (%s); going back to %s",
            run.model_id,
            damaged.step,
            problem,
            "its beginning" if before is None else f"step {before.step}",
        )
        return True
