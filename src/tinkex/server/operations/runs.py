"""All live runs: loaded from the store when a server starts, found by id after that."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tinkex.server.clock import Clock
from tinkex.server.operations.kind import Kind
from tinkex.server.operations.log import Entry, RunLog
from tinkex.server.operations.run import NEVER_MADE, Run
from tinkex.server.refusals import NotFound
from tinkex.server.settings import Settings
from tinkex.server.storage.database import Store
from tinkex.server.storage.database import operations as operations_table
from tinkex.server.storage.database import runs as table
from tinkex.server.storage.database import snapshots as snapshots_table
from tinkex.server.storage.database.operations import OperationRow
from tinkex.server.storage.database.runs import RunRow


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

    async def load(self) -> None:
        """Load every live run with the operations after its snapshot."""
        for row in await self._store.query(table.live):
            self._runs[row.model_id] = await self._restore(row)

    def add(self, row: RunRow) -> Run:
        """Add a run that was just written to the store."""
        run = self._runs[row.model_id] = self.new(row)
        return run

    def new(self, row: RunRow) -> Run:
        return Run(row, self._log(-1), now=self._clock.monotonic())

    def remove(self, run: Run) -> None:
        self._runs.pop(run.model_id, None)

    def put_back(self, run: Run) -> None:
        """Put back a run that was removed and whose end could not be recorded."""
        self._runs[run.model_id] = run

    def find(self, model_id: str) -> Run | None:
        return self._runs.get(model_id)

    async def owned(self, tenant: str, model_id: str) -> Run:
        """The tenant's live run."""
        run = self._runs.get(model_id)
        if run is None or run.tenant != tenant:
            raise NotFound(await self._missing(tenant, model_id))
        return run

    async def _missing(self, tenant: str, model_id: str) -> str:
        row = await self._store.read(table.get, model_id)
        if row is None or row.tenant != tenant:
            return f"no training run {model_id[:200]!r}"
        return f"training run {model_id!r} has ended: it was stopped, or its session is over"

    def sessions(self) -> set[str]:
        """Sessions with a live run."""
        return {run.row.session_id for run in self._runs.values()}

    def count(self, tenant: str) -> int:
        return sum(run.tenant == tenant for run in self._runs.values())

    @property
    def spare_bytes(self) -> int:
        """Bytes kept on disk only for the case that a snapshot is damaged."""
        return sum(run.spare_bytes for run in self._runs.values())

    async def _restore(self, row: RunRow) -> Run:
        snapshots = await self._store.query(snapshots_table.of_run, row.model_id)
        snapshot, before = (*snapshots, None, None)[:2]
        base = -1 if snapshot is None else snapshot.seq_id
        floor = -1 if before is None else before.seq_id
        spare = await self._store.query(operations_table.kept_bytes, row.model_id, floor, base)
        now = self._clock.monotonic()
        run = Run(row, self._log(base), snapshot, before, spare_bytes=spare, now=now)
        if row.state == "stopping":
            run.stop()
        for operation in await self._store.query(operations_table.after, row.model_id, base):
            run.log.admit(self.entry(operation))
        if run.log.never_made:
            run.break_down(NEVER_MADE)
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
            routes_bytes=row.routes_bytes,
            routes_blob=row.routes_blob,
            state="waiting" if row.state == "accepted" else row.state,
        )
