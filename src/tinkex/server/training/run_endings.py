"""Ends runs that were stopped or whose session has ended, once they have no work left."""

from __future__ import annotations

from tinkex.server.operations.run import Run
from tinkex.server.operations.runs import Runs
from tinkex.server.recording.recorder import Recorder
from tinkex.server.tenancy.sessions import Sessions
from tinkex.server.training.residency import Residency
from tinkex.server.training.snapshots import Snapshots


class RunEndings:
    """Ends runs."""

    def __init__(
        self,
        runs: Runs,
        sessions: Sessions,
        residency: Residency,
        snapshots: Snapshots,
        recorder: Recorder,
    ) -> None:
        self._runs = runs
        self._sessions = sessions
        self._residency = residency
        self._snapshots = snapshots
        self._recorder = recorder

    async def end_runs(self) -> None:
        """End those that are over."""
        for run in self._runs:
            over = run.stopped or not self._sessions.is_alive(run.row.session_id)
            if over and not run.active and not run.log.unfinished():
                await self._end(run)

    async def _end(self, run: Run) -> None:
        self._runs.remove(run)
        try:
            freed = await self._snapshots.end(run)
        except Exception:
            self._runs.put_back(run)  # its place in the engine must stay counted
            raise
        self._recorder.changed(run.tenant, run.model_id, "ended")
        await self._residency.drop(run)
        await self._snapshots.discard(freed)
