"""Brings a run into its engine's memory, keeps a copy on disk, and lets it go again.

Does one errand at a time and knows nothing of when: the scheduler decides that.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Callable

from tinkex.engine.messages import DropRun, LoadRun
from tinkex.server.engines import Engines
from tinkex.server.runs import Run
from tinkex.server.snapshots import Snapshots
from tinkex.server.store.snapshots import SnapshotRow
from tinkex.server.supervisor import CommandFailed, Engine, EngineLost

logger = logging.getLogger(__name__)


class Residence:
    """A run lives in its engine's memory while its `generation` is the engine's."""

    def __init__(self, engines: Engines, snapshots: Snapshots) -> None:
        self._engines = engines
        self._snapshots = snapshots

    async def restore(self, run: Run, engine: Engine) -> None:
        """Give a lost run its last good snapshot; the operations after it follow as replays."""
        generation = engine.generation
        try:
            while run.snapshot is not None:
                problem = await self._load(run, run.snapshot, engine)
                if problem is None:
                    break
                if not await self._snapshots.go_back(run, problem):
                    run.broken = f"its snapshot cannot be loaded: {problem}"
                    logger.error("%s cannot be restored: %s", run.model_id, run.broken)
                    return
        except EngineLost:
            return
        replays = run.log.rewind()
        if run.snapshot is None and replays:
            run.restoring = f"starting again, replaying {replays} operations"
        run.generation = generation

    async def snapshot(self, run: Run, engine: Engine, sent: Callable[[], None]) -> None:
        """Write a run down; `sent` is called as soon as the engine may get its next command."""
        run.snapshot_due = False
        try:
            await self._snapshots.take(run, engine, sent)
        except EngineLost:
            run.generation = 0
        except (OSError, sqlite3.Error) as error:
            logger.error("snapshot of %s failed, it is tried again: %s", run.model_id, error)

    async def evict(self, run: Run, engine: Engine) -> None:
        """Write an idle run down and free the engine's memory of it."""
        run.evict = False
        try:
            written = run.log.begun_through <= run.log.base
            if written or await self._snapshots.take(run, engine, lambda: None):
                await engine.submit(DropRun(f"{run.model_id}:drop", run.model_id))
                run.generation = 0
        except (EngineLost, CommandFailed):
            run.generation = 0
        except (OSError, sqlite3.Error) as error:
            logger.error("%s stays in the engine's memory: %s", run.model_id, error)

    async def drop(self, run: Run) -> None:
        """Free the engine's memory of a run that is over."""
        engine = self._engines.find(run.row.base_model)
        if engine and run.generation and run.generation == engine.generation:
            run.generation = 0
            with contextlib.suppress(EngineLost, CommandFailed):
                await engine.submit(DropRun(f"{run.model_id}:drop", run.model_id))

    async def _load(self, run: Run, snapshot: SnapshotRow, engine: Engine) -> str | None:
        """Check a snapshot and hand it to the engine; what is wrong with it, if anything is."""
        problem = await self._snapshots.problem(snapshot)
        if problem is not None:
            return problem
        replays = run.log.rewind()
        run.restoring = f"restoring from step {snapshot.step}, replaying {replays} operations"
        op = f"{run.model_id}:restore:{engine.generation}"
        folder = str(self._snapshots.path(snapshot))
        try:
            await engine.submit(LoadRun(op, run.model_id, folder, True, create=True))
        except CommandFailed as failed:
            return failed.message
        return None
