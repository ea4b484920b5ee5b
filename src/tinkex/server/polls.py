"""Answers polls: from a promise in memory, from the store, or with why there is nothing yet.

A finished training result is in the store and may be fetched again until it expires; the newest
ones are also kept in memory. A lost sample is `Gone`, so that its client submits it again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tinkex.server.clock import Clock
from tinkex.server.engines.pool import Engines
from tinkex.server.operations.custom_losses import Losses
from tinkex.server.operations.log import Gap
from tinkex.server.operations.run import Run
from tinkex.server.operations.runs import Runs
from tinkex.server.promises import Outcome, Promise, Promises
from tinkex.server.refusals import Gone, NotFound
from tinkex.server.sampling.jobs import Sampling
from tinkex.server.settings import MIB, Settings
from tinkex.server.storage.blobs import BlobStore
from tinkex.server.storage.database import Store
from tinkex.server.storage.database import operations as table
from tinkex.server.storage.database.operations import OperationRow
from tinkex.wire.limits import QUEUE_ACTIVE, QUEUE_PAUSED_CAPACITY

METADATA_BYTES = 1 * MIB


@dataclass(frozen=True, slots=True)
class Pending:
    """Nothing yet, and why."""

    request_id: str
    queue_state: str
    reason: str


@dataclass(frozen=True, slots=True)
class Large:
    """Finished, but so large that the client may want to make room first."""

    size: int


Answer = Outcome | Pending | Large


class Futures:
    """The outgoing side of everything that was promised."""

    def __init__(
        self,
        promises: Promises,
        store: Store,
        blobs: BlobStore,
        runs: Runs,
        engines: Engines,
        sampling: Sampling,
        losses: Losses,
        clock: Clock,
        settings: Settings,
    ) -> None:
        self._promises = promises
        self._store = store
        self._blobs = blobs
        self._runs = runs
        self._engines = engines
        self._sampling = sampling
        self._losses = losses
        self._clock = clock
        self._hold_s = settings.timings.poll_hold_s
        self._fetched: set[str] = set()

    async def retrieve(self, tenant: str, request_id: str, metadata_first: bool) -> Answer:
        """The outcome of a promise, waiting for it a while."""
        promise = self._promises.get(request_id)
        if promise is None:
            outcome: Outcome | None = await self._stored(tenant, request_id)
        elif promise.tenant != tenant:
            raise NotFound(f"no future {request_id[:200]!r}")
        else:
            outcome = await promise.wait(self._hold_s)
        if outcome is None:
            assert promise is not None
            self._sampling.asked(request_id)
            return self._pending(promise)
        if metadata_first and len(outcome.body) > METADATA_BYTES:
            return Large(len(outcome.body))
        self._note_fetched(request_id)
        return outcome

    def flush(self) -> None:
        """Write down which results were fetched."""
        fetched, self._fetched = self._fetched, set()
        if fetched:
            now = self._clock.now()
            self._store.post(lambda db: table.mark_all_fetched(db, fetched, now))

    async def _stored(self, tenant: str, request_id: str) -> Outcome:
        row = await self._store.query(lambda db: table.get(db, request_id))
        if row is not None and row.tenant == tenant:
            return await self._from_row(row)
        lost = self._sampling.lost(tenant, request_id)
        if lost is not None:
            raise lost
        outcome = self._losses.outcome(tenant, request_id)
        if outcome is None:
            raise NotFound(f"no future {request_id[:200]!r}")
        return outcome

    async def _from_row(self, row: OperationRow) -> Outcome:
        body: bytes | None = None
        if row.result_blob is not None:
            body = await asyncio.to_thread(self._blobs.get, row.result_blob)
        elif row.result_kind is not None:
            body = await self._store.query(lambda db: table.inline_result(db, row.request_id))
        if body is None or row.result_kind is None:
            raise Gone(f"the result of {row.request_id!r} was kept as long as promised")
        return Outcome(row.result_kind, body, failed=row.state == "failed")

    def _note_fetched(self, request_id: str) -> None:
        if not self._sampling.fetched(request_id):
            self._fetched.add(request_id)

    # ---- why it waits

    def _pending(self, promise: Promise) -> Pending:
        state, reason = self.explain(promise.request_id)
        return Pending(promise.request_id, state, reason)

    def explain(self, request_id: str) -> tuple[str, str]:
        """The queue state of something unfinished, and the reason in words."""
        sample = self._sampling.explain(request_id)
        if sample is not None:
            return sample
        model_id, _, number = request_id.rpartition(":")
        run = self._runs.find(model_id)
        if run is None or not number.isdecimal():
            return QUEUE_ACTIVE, "queued"
        return self._explain_operation(run, int(number))

    def _explain_operation(self, run: Run, seq_id: int) -> tuple[str, str]:
        engine = self._engines.find(run.row.base_model)
        if engine is None:
            return QUEUE_PAUSED_CAPACITY, f"{run.row.base_model} is not served at the moment"
        if not engine.is_ready:
            return QUEUE_PAUSED_CAPACITY, engine.reason
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
