"""Why a training operation waits, in words: what its client is shown while it polls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from tinkex.server.clock import Clock
from tinkex.server.engines.pool import Engines
from tinkex.server.operations.log import Gap
from tinkex.server.operations.run import Run
from tinkex.server.operations.runs import Runs
from tinkex.wire.limits import QUEUE_ACTIVE, QUEUE_PAUSED_CAPACITY

Cause = Literal["engine", "restore", "request", "turn"]
"""What a run's work waits for: a serving engine, the return of its weights, a missing request, its
turn."""


class QueueReasons:
    """Only looks; changes nothing."""

    def __init__(
        self,
        runs: Runs,
        engines: Engines,
        clock: Clock,
        trouble: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`trouble` says why nothing can be stored, while that is so."""
        self._trouble = trouble
        self._runs = runs
        self._engines = engines
        self._clock = clock

    def cause(self, run: Run) -> Cause:
        """What `explain` says in words, as a value to count."""
        pool = self._engines.find(run.row.base_model)
        if pool is None or not pool.is_ready:
            return "engine"
        if run.restoring is not None:
            return "restore"
        upcoming = run.log.next(self._clock.monotonic())
        return "request" if isinstance(upcoming, Gap) else "turn"

    def explain(self, request_id: str) -> tuple[str, str]:
        """The queue state of an unfinished operation, and the reason."""
        model_id, _, number = request_id.rpartition(":")
        run = self._runs.find(model_id)
        if run is None or not number.isdecimal():
            return QUEUE_ACTIVE, "queued"
        return self._of_operation(run, int(number))

    def _of_operation(self, run: Run, seq_id: int) -> tuple[str, str]:
        trouble = self._trouble()
        if trouble is not None:
            return QUEUE_PAUSED_CAPACITY, trouble
        pool = self._engines.find(run.row.base_model)
        if pool is None:
            return QUEUE_PAUSED_CAPACITY, f"{run.row.base_model} is not served at the moment"
        if not pool.is_ready:
            return QUEUE_PAUSED_CAPACITY, pool.reason
        if run.residence is None and not pool.takes_work:
            return QUEUE_PAUSED_CAPACITY, pool.reason
        if run.restoring is not None:
            return QUEUE_PAUSED_CAPACITY, run.restoring
        entry = run.log.find(seq_id)
        if entry is not None and entry.state == "running":
            return QUEUE_ACTIVE, "the engine is working on it"
        upcoming = run.log.next(self._clock.monotonic())
        if isinstance(upcoming, Gap) and upcoming.missing < seq_id:
            left = max(0.0, upcoming.deadline - self._clock.monotonic())
            return QUEUE_ACTIVE, (
                f"waiting for seq_id {upcoming.missing}, which has not arrived; "
                f"it is skipped in {left:.0f} s"
            )
        ahead = sum(
            other.pending or other.state == "running"
            for number, other in run.log.entries.items()
            if number < seq_id
        )
        return QUEUE_ACTIVE, f"{ahead} operations of this run are ahead"
