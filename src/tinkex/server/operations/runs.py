"""Training runs in memory: each with its log, its last snapshot and where its state lives.

A run's live state is in an engine's memory or nowhere; `generation` says in which life of the
engine. What makes a run whole again is on disk: its snapshot and the operations behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tinkex.server.clock import Clock
from tinkex.server.operations.kind import Kind
from tinkex.server.operations.log import Entry, RunLog
from tinkex.server.operations.sampler_gap import GapWatch
from tinkex.server.refusals import NotFound
from tinkex.server.settings import Settings
from tinkex.server.storage.database import Store
from tinkex.server.storage.database import operations as operations_table
from tinkex.server.storage.database import runs as table
from tinkex.server.storage.database import snapshots as snapshots_table
from tinkex.server.storage.database.operations import OperationRow
from tinkex.server.storage.database.runs import RunRow
from tinkex.server.storage.database.snapshots import SnapshotRow

NEVER_MADE = "its creation failed"
_FIRST_STAY_S, _LONGEST_STAY_S = 1.0, 60.0


@dataclass(slots=True, eq=False)
class Run:
    """One live run.

    `sending` is the turn of the errand on its way to the engine, 0 when there is none; `latest`
    carries the newest operation; `active` counts everything of this run that is with the engine or
    being written down; `restoring` says in words what is being rebuilt, `broken` why it never can.
    `before` is the snapshot to fall back to when the newest is damaged; the operations between the
    two keep their bodies for that, `spare_bytes` of them. `stopped` is its owner's wish that it
    ends. `gaps` compares it with its sampler.

    Where its state lives changes in four ways only; numbers are lives of the engine, 0 is none:

    ===============  =======  ============  ========================================================
    transition       `place`  `generation`  when
    ===============  =======  ============  ========================================================
    `take_place`     life     0             before it is sent for: room is counted by places
    `settle`         life     life          the engine has its state, or an empty log to make it by
    `stay`           life     life          letting it go failed; it is left alone for a while
    `leave`          0        0             the engine let it go, lost it, or died
    ===============  =======  ============  ========================================================
    """

    row: RunRow
    log: RunLog
    snapshot: SnapshotRow | None = None
    before: SnapshotRow | None = None
    spare_bytes: int = 0
    place: int = 0
    generation: int = 0
    settled_at: float = 0.0
    stays_until: float = 0.0
    failed_evictions: int = 0
    sending: int = 0
    active: int = 0
    latest: asyncio.Task[None] | None = None
    steps_since_snapshot: int = 0
    snapshot_at: float = 0.0
    snapshot_due: bool = False
    evict: bool = False
    used_at: float = 0.0
    restoring: str | None = None
    broken: str | None = None
    stopped: bool = False
    gaps: GapWatch = field(default_factory=GapWatch)
    _progress: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def model_id(self) -> str:
        return self.row.model_id

    @property
    def tenant(self) -> str:
        return self.row.tenant

    @property
    def refusal(self) -> str | None:
        """Why nothing asked of it can be done any more, if that is so."""
        return "it was stopped by its owner" if self.stopped else self.broken

    # ---- where its state lives

    def take_place(self, life: int) -> None:
        self.place, self.generation, self.evict = life, 0, False

    def settle(self, life: int, now: float) -> None:
        self.place = self.generation = life
        self.settled_at = self.stays_until = now
        self.failed_evictions = 0

    def stay(self, now: float) -> None:
        pause = _FIRST_STAY_S * 2.0**self.failed_evictions
        self.evict = False
        self.stays_until = now + min(pause, _LONGEST_STAY_S)
        self.failed_evictions += 1

    def leave(self) -> None:
        self.place = self.generation = 0
        self.evict = False

    async def progress(self) -> None:
        """Wait until something of this run has come to its end."""
        self._progress.clear()
        await self._progress.wait()

    def progressed(self) -> None:
        self._progress.set()


class Runs:
    """All live runs by id."""

    def __init__(
        self, store: Store, clock: Clock, settings: Settings, kind: Callable[[str], Kind]
    ) -> None:
        """`kind` knows the kinds of operations by the names the store has."""
        self._store = store
        self._clock = clock
        self._settings = settings
        self._kind = kind
        self._runs: dict[str, Run] = {}

    def __iter__(self) -> Iterator[Run]:
        return iter(list(self._runs.values()))

    def load(self) -> None:
        """Take up every live run with its operations after its snapshot."""
        for row in self._store.read(table.live):
            self._runs[row.model_id] = self._restore(row)

    def add(self, row: RunRow) -> Run:
        """A run that was just written to the store."""
        run = self._runs[row.model_id] = self.new(row)
        return run

    def new(self, row: RunRow) -> Run:
        return Run(row, self._log(-1), snapshot_at=self._clock.monotonic())

    def remove(self, run: Run) -> None:
        self._runs.pop(run.model_id, None)

    def put_back(self, run: Run) -> None:
        """One that was removed and whose end could not be written down."""
        self._runs[run.model_id] = run

    def find(self, model_id: str) -> Run | None:
        return self._runs.get(model_id)

    def owned(self, tenant: str, model_id: str) -> Run:
        """The tenant's live run."""
        run = self._runs.get(model_id)
        if run is None or run.tenant != tenant:
            raise NotFound(self._missing(tenant, model_id))
        return run

    def _missing(self, tenant: str, model_id: str) -> str:
        row = self._store.read(lambda db: table.get(db, model_id))
        if row is None or row.tenant != tenant:
            return f"no training run {model_id[:200]!r}"
        return f"training run {model_id!r} has ended: it was stopped, or its session is over"

    def count(self, tenant: str) -> int:
        return sum(run.tenant == tenant for run in self._runs.values())

    @property
    def spare_bytes(self) -> int:
        """What is kept on disk only for the case that a snapshot is damaged."""
        return sum(run.spare_bytes for run in self._runs.values())

    def _restore(self, row: RunRow) -> Run:
        snapshots = self._store.read(lambda db: snapshots_table.of_run(db, row.model_id))
        snapshot, before = (*snapshots, None, None)[:2]
        base = -1 if snapshot is None else snapshot.seq_id
        floor = -1 if before is None else before.seq_id
        run = Run(row, self._log(base), snapshot, before, snapshot_at=self._clock.monotonic())
        run.stopped = row.state == "stopping"
        run.spare_bytes = self._store.read(
            lambda db: operations_table.kept_bytes(db, row.model_id, floor, base)
        )
        for operation in self._store.read(
            lambda db: operations_table.after(db, row.model_id, base)
        ):
            run.log.admit(self.entry(operation))
        if run.log.never_made:
            run.broken = NEVER_MADE
        return run

    def _log(self, base: int) -> RunLog:
        timings = self._settings.timings
        return RunLog(base, timings.gap_timeout_s, timings.gap_grace_s)

    def entry(self, row: OperationRow) -> Entry:
        """An operation as the store remembers it."""
        return Entry(
            request_id=row.request_id,
            seq_id=row.seq_id,
            kind=self._kind(row.kind),
            digest=row.digest,
            arrived=self._clock.monotonic(),
            payload_bytes=row.payload_bytes,
            payload_blob=row.payload_blob,
            state="waiting" if row.state == "accepted" else row.state,
        )
