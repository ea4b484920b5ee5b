"""Loads a run into its engine's memory, keeps a snapshot on disk, and drops it again.

Does one errand at a time; the scheduler decides when.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace

from tinkex.engine.messages import DropRun, LoadRun, WeightsRef
from tinkex.server.clock import Clock
from tinkex.server.engines.engine import CommandFailed, Engine, EngineLost, RunLost
from tinkex.server.engines.pool import Engines
from tinkex.server.operations.run import Run
from tinkex.server.storage.database.snapshots import SnapshotRow
from tinkex.server.storage.database.transactions import DatabaseError
from tinkex.server.training.snapshots import Snapshots

logger = logging.getLogger(__name__)


_TRIES = 3
"""After so many failed saves a run is dropped unsaved: the log can rebuild it."""


class Residency:
    """A run lives in its engine's memory while its `residence` is the engine's."""

    def __init__(self, engines: Engines, snapshots: Snapshots, clock: Clock) -> None:
        self._engines = engines
        self._snapshots = snapshots
        self._clock = clock

    async def restore(self, run: Run, engine: Engine) -> None:
        """Give a lost run its last good snapshot; the operations after it follow as replays."""
        place = run.place
        assert place is not None, "room is taken before a run is sent for"
        try:
            arrived = await self._bring(run, engine, place.life)
        except BaseException:
            run.leave()
            raise
        if arrived:
            run.settle(self._clock.monotonic())
        else:
            run.leave()

    async def _bring(self, run: Run, engine: Engine, life: int) -> bool:
        try:
            while run.snapshot is not None:
                with self._snapshots.using(run.snapshot):
                    problem = await self._load(run, run.snapshot, engine, life)
                if problem is None:
                    break
                if not await self._snapshots.go_back(run, problem):
                    run.break_down(f"its snapshot cannot be loaded: {problem}")
                    logger.error("%s cannot be restored: %s", run.model_id, run.broken)
                    return False
        except EngineLost:
            return False
        replays = run.log.rewind()
        if run.snapshot is None:
            run.restore(f"starting again, replaying {replays} operations" if replays else None)
        return True

    async def snapshot(self, run: Run, engine: Engine, sent: Callable[[], None]) -> None:
        """Save the run; `sent` is called as soon as the engine may get its next command."""
        run.begin_snapshot(self._clock.monotonic())
        try:
            await self._snapshots.take(run, engine, sent)
        except EngineLost:
            run.leave()
        except (OSError, DatabaseError) as error:
            logger.error("snapshot of %s failed, it is tried again: %s", run.model_id, error)

    async def evict(self, run: Run, engine: Engine) -> None:
        """Save an idle run and free the engine's memory of it. If it cannot be saved, others are
        asked to leave first; in the end it is dropped unsaved, and rebuilt from its log."""
        life = run.life
        try:
            # A run that was only created is created again as quickly as it is read.
            written = run.log.begun_through <= run.log.base or run.log.only_created
            if written or await self._written_down(run, engine):
                await engine.submit(DropRun(f"{run.model_id}:drop", run.model_id), life=life)
                run.leave()
            else:
                run.stay(self._clock.monotonic())
        except EngineLost:
            run.leave()
        except CommandFailed as failed:
            logger.error("%s stays in the engine's memory: %s", run.model_id, failed)
            run.stay(self._clock.monotonic())

    async def _written_down(self, run: Run, engine: Engine) -> bool:
        try:
            if await self._snapshots.take(run, engine, lambda: None):
                return True
        except (OSError, DatabaseError) as error:
            logger.error("snapshot of %s failed: %s", run.model_id, error)
        given_up = run.failed_evictions + 1 >= _TRIES
        how = "leaves without a snapshot, to be rebuilt from its log" if given_up else "stays"
        logger.error("%s %s: it could not be written down", run.model_id, how)
        return given_up

    async def drop(self, run: Run) -> None:
        """Free the engine's memory of a run that is over."""
        engine = self._engines.at(run.residence)
        if engine is not None:
            with contextlib.suppress(EngineLost, CommandFailed):
                drop = DropRun(f"{run.model_id}:drop", run.model_id)
                await engine.submit(drop, life=run.life)
        run.leave()

    async def _load(self, run: Run, snapshot: SnapshotRow, engine: Engine, life: int) -> str | None:
        """Load a snapshot into the engine. Returns what is wrong with it, if anything. An engine
        elsewhere fetches and checks it; if it cannot, it comes through the server."""
        if engine.is_away and (linked := await self._snapshots.linked(snapshot)) is not None:
            with contextlib.suppress(_OutOfReach):
                return await self._hand_over(run, snapshot, linked, engine, life)
        problem = await self._snapshots.problem(snapshot)
        if problem is not None:
            return problem
        source = await self._snapshots.reference(snapshot)
        if engine.is_away and source.files:
            with contextlib.suppress(_OutOfReach):
                return await self._hand_over(run, snapshot, source, engine, life)
            source = replace(source, files=())
        return await self._hand_over(run, snapshot, source, engine, life)

    async def _hand_over(
        self, run: Run, snapshot: SnapshotRow, source: WeightsRef, engine: Engine, life: int
    ) -> str | None:
        replays = run.log.rewind()
        run.restore(f"restoring from step {snapshot.step}, replaying {replays} operations")
        op = f"{run.model_id}:restore:{life}"
        try:
            await engine.submit(LoadRun(op, run.model_id, source, True, create=True), life=life)
        except RunLost as lost:
            if not source.files:
                raise
            logger.warning("%s could not get a snapshot: %s", engine.name, lost)
            raise _OutOfReach from lost
        except CommandFailed as failed:
            return failed.message
        return None


class _OutOfReach(Exception):
    """The engine cannot fetch a snapshot by its links."""
