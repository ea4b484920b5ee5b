"""What time ends: silent sessions, old results, idle runs. Never a checkpoint that has no expiry.

`tick` is called every few seconds and does what is due; after a start, `recover` clears away what a
crash left half-made.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sqlite3
from collections.abc import Awaitable, Callable

from tinkex.server.checkpoints.service import Checkpoints
from tinkex.server.clock import Clock
from tinkex.server.listening import Listening
from tinkex.server.operations.custom_losses import Losses
from tinkex.server.operations.kinds import PINNING
from tinkex.server.operations.run import Run
from tinkex.server.operations.runs import Runs
from tinkex.server.polls import Futures
from tinkex.server.recording.recorder import Recorder
from tinkex.server.sampling.jobs import Sampling
from tinkex.server.settings import Settings
from tinkex.server.storage.blobs import BlobStore
from tinkex.server.storage.database import Store, checkpoints, kept_samples, samplers
from tinkex.server.storage.database import operations as operations_table
from tinkex.server.storage.database import runs as runs_table
from tinkex.server.storage.database import snapshots as snapshots_table
from tinkex.server.storage.folders import Folders
from tinkex.server.storage.pins import Pins
from tinkex.server.tenancy.sessions import Sessions
from tinkex.server.tenancy.usage import Meter
from tinkex.server.training.residency import Residency
from tinkex.server.training.scheduler import Scheduler

logger = logging.getLogger(__name__)

_YOUNG_S = 600.0


class Reaper:
    """The one part that deletes."""

    def __init__(
        self,
        store: Store,
        blobs: BlobStore,
        weights: Folders,
        snapshots: Folders,
        pins: Pins,
        sessions: Sessions,
        runs: Runs,
        sampling: Sampling,
        futures: Futures,
        scheduler: Scheduler,
        residency: Residency,
        saved: Checkpoints,
        losses: Losses,
        meter: Meter,
        recorder: Recorder,
        clock: Clock,
        listening: Listening,
        settings: Settings,
    ) -> None:
        self._store = store
        self._blobs = blobs
        self._weights = weights
        self._snapshots = snapshots
        self._pins = pins
        self._sessions = sessions
        self._runs = runs
        self._sampling = sampling
        self._futures = futures
        self._scheduler = scheduler
        self._residency = residency
        self._saved = saved
        self._losses = losses
        self._meter = meter
        self._recorder = recorder
        self._clock = clock
        self._listening = listening
        self._timings = settings.timings

    async def recover(self) -> None:
        """Forget what was never acknowledged, and delete what nothing names."""
        done = await self._torn(await self._store.query(operations_table.done_blobs))
        accepted = await self._torn(await self._store.query(operations_table.accepted_blobs))

        def work(db: sqlite3.Connection) -> None:
            operations_table.reopen_all(db, done)
            operations_table.forget_all(db, accepted)

        await self._store.write(work)
        named = await self._store.query(operations_table.blob_names)
        await asyncio.to_thread(self._blobs.keep_only, named)
        kept = await self._store.query(snapshots_table.folders)
        for name in self._snapshots.names() - kept:
            await asyncio.to_thread(self._snapshots.delete, name)

    async def _torn(self, blobs: list[tuple[str, str]]) -> list[str]:
        """Those operations whose blob is not whole."""

        def find() -> list[str]:
            return [request_id for request_id, blob in blobs if not self._blobs.is_whole(blob)]

        return await asyncio.to_thread(find)

    async def sweep(self) -> None:
        """Delete pins and weights that nothing needs. Runs must have been loaded."""
        loads = await self._store.query(lambda db: operations_table.kept(db, PINNING))
        await asyncio.to_thread(self._pins.keep_only, loads)
        await self._delete_unnamed_weights(made_before=math.inf)

    async def tick(self) -> None:
        """Do what is due now. A part that fails is logged and tried again with the next tick."""
        self._listening.look()
        for part in self._parts():
            try:
                waiting = part()
                if waiting is not None:
                    await waiting
            except Exception:  # whatever it is, it must not keep the other parts from their work
                logger.exception("maintenance failed in %s; it is tried again", part.__qualname__)

    def _parts(self) -> tuple[Callable[[], Awaitable[object] | None], ...]:
        return (
            self._sessions.expire_silent,
            self.end_runs,
            self._free_losses,
            self._evict_idle,
            self._sampling.expire,
            self._futures.flush,
            self._meter.flush,
            self._expire_results,
            self._saved.expire,
            self._forget_old,
            self._delete_garbage,
            self._scheduler.pump,
        )

    async def live(self, interval_s: float) -> None:
        """Tick for ever."""
        while True:
            await asyncio.sleep(interval_s)
            await self.tick()

    async def end_runs(self) -> None:
        """A run goes when it was stopped or with its session, once nothing of it is left to do."""
        for run in self._runs:
            over = run.stopped or not self._sessions.is_alive(run.row.session_id)
            if over and not run.active and not run.log.unfinished():
                await self._end(run)

    async def _end(self, run: Run) -> None:
        self._runs.remove(run)

        def work(db: sqlite3.Connection) -> tuple[list[str], list[str]]:
            runs_table.end(db, run.model_id, self._clock.now())
            snapshots_table.delete(db, run.model_id)
            loads = operations_table.kept_through(db, run.model_id, 2**62, PINNING)
            return operations_table.drop_payloads(db, run.model_id, 2**62), loads

        try:
            blobs, loads = await self._store.write(work)
        except Exception:
            self._runs.put_back(run)  # its place in the engine must stay counted
            raise
        self._recorder.changed(run.tenant, run.model_id, "ended")
        await self._residency.drop(run)
        for name in blobs:
            await asyncio.to_thread(self._blobs.delete, name)
        for snapshot in (run.snapshot, run.before):
            if snapshot is not None:
                await asyncio.to_thread(self._snapshots.delete, snapshot.folder)
        for request_id in loads:
            self._pins.drop(request_id)

    async def _free_losses(self) -> None:
        await self._losses.free({run.row.session_id for run in self._runs})

    def _evict_idle(self) -> None:
        oldest = self._clock.monotonic() - self._timings.run_idle_s
        for run in self._runs:
            if run.used_at < oldest and not run.log.unfinished():
                run.ask_to_leave()

    async def _expire_results(self) -> None:
        finished = self._listening.before(self._timings.result_retention_s)
        fetched = self._listening.before(self._timings.fetched_result_retention_s)
        blobs = await self._store.write(
            lambda db: operations_table.expire_results(db, finished, fetched)
        )
        for name in blobs:
            await asyncio.to_thread(self._blobs.delete, name)

    async def _forget_old(self) -> None:
        """The records of runs go long after the runs themselves."""
        before = self._listening.before(self._timings.record_retention_s)

        def work(db: sqlite3.Connection) -> None:
            operations_table.forget_old(db, before)
            kept_samples.delete_old(db, before)

        await self._store.write(work)

    async def _delete_garbage(self) -> None:
        await self._delete_unnamed_weights(self._listening.before(_YOUNG_S))

    async def _delete_unnamed_weights(self, made_before: float) -> None:
        """A young folder may be sealed and not yet named, so it is left alone."""

        def named(db: sqlite3.Connection) -> set[str]:
            ended = self._listening.before(self._timings.sampler_retention_s)
            return checkpoints.folders(db) | samplers.folders(db, ended)

        present = await asyncio.to_thread(self._weights.names, made_before)
        if not present:
            return
        for name in present - await self._store.query(named):
            await asyncio.to_thread(self._weights.delete, name)
