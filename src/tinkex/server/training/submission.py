"""Accepts operations: each once, and durable before it is acknowledged.

An operation for a live run of one's own is always accepted. Wrong content becomes a failed future
when the operation's turn comes, because a refused chunk would leave its client waiting for ever.
Refused are only a used `seq_id` with another body, and what would exceed a quota.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from tinkex.server.clock import Clock
from tinkex.server.operations.kind import Kind
from tinkex.server.operations.log import Entry
from tinkex.server.operations.run import Run
from tinkex.server.operations.runs import Runs
from tinkex.server.promises import Promises
from tinkex.server.protocol.outcomes import failure
from tinkex.server.refusals import Busy, Refusal, Unavailable
from tinkex.server.settings import Settings
from tinkex.server.storage.database import operations as table
from tinkex.server.storage.database import runs as runs_table
from tinkex.server.storage.database.operations import Finish, OperationRow
from tinkex.server.storage.database.runs import RunRow
from tinkex.server.storage.database.transactions import DatabaseError, Transaction
from tinkex.server.storage.home_storage import HomeStorage
from tinkex.server.storage.store_threads import at_store
from tinkex.server.training.payload_intake import Draft

_FRESH = 8
"""A run's waiting operations whose bodies stay in memory; bodies of more are read back later."""
_FRESH_BYTES = 256 * 1024 * 1024
"""Memory for the bodies of all runs."""


class Submission(NamedTuple):
    """An operation as it arrived."""

    seq_id: int  # the client's number for it
    kind: Kind  # of operation
    body: bytes  # as it arrived
    digest: bytes  # of its meaning
    content: object | None = None  # the decoded body
    draft: Draft | None = None  # the body, if it was written ahead


class Submissions:
    """Accepts operations into the runs' logs."""

    def __init__(
        self,
        storage: HomeStorage,
        runs: Runs,
        promises: Promises,
        clock: Clock,
        settings: Settings,
        on_accepted: Callable[[Run], None],
    ) -> None:
        self._store, self._blobs = storage.store, storage.blobs
        self._runs = runs
        self._promises = promises
        self._clock = clock
        self._settings = settings
        self._on_accepted = on_accepted
        self._writing: dict[str, asyncio.Future[None]] = {}

    async def create(self, row: RunRow, asked: Submission) -> str:
        """Accept a new run together with the operation 0 that makes it."""
        known = self._runs.find(row.model_id)
        if known is not None:
            return await self.submit(known, asked)
        limit = self._settings.limits_of(row.tenant).runs_per_tenant
        if self._runs.count(row.tenant) >= limit:
            raise Busy(f"{limit} training runs are live for this key: finish some sessions", 30.0)
        return await self._accept(self._runs.add(row), asked, row)

    async def submit(self, run: Run, asked: Submission) -> str:
        """Accept an operation and return its request id once it is durable."""
        known = run.log.find(asked.seq_id)
        if known is not None:
            return await self._again(known.request_id, known.digest, asked)
        request_id = f"{run.model_id}:{asked.seq_id}"
        if run.log.is_late(asked.seq_id):
            row = await self._store.read(table.get, request_id)
            twin = row or run.log.find(asked.seq_id)  # a copy may have arrived meanwhile
            if twin is not None:
                return await self._again(request_id, twin.digest, asked)
            return await self._accept_late(run, asked)
        self._check_quota(run, asked)
        return await self._accept(run, asked, None)

    def may_write(self, tenant: str, size: int) -> bool:
        """Whether a body is too large for its row and there is room for it on the disk."""
        try:
            self._check_bytes(tenant, size)
        except Busy:
            return False
        return size > self._settings.inline_bytes

    async def _again(self, request_id: str, digest: bytes, asked: Submission) -> str:
        writing = self._writing.get(request_id)
        if writing is not None:
            await asyncio.shield(writing)
        if digest != asked.digest:
            raise Refusal(
                f"seq_id {asked.seq_id} was already used for another request: "
                "each operation of a run needs its own number"
            )
        return request_id

    async def _accept(self, run: Run, asked: Submission, new_run: RunRow | None) -> str:
        entry = self._entry(run, asked)
        run.log.admit(entry)
        written = self._writing[entry.request_id] = asyncio.get_running_loop().create_future()
        try:
            await self._write(run, entry, asked, new_run)
        except (OSError, DatabaseError) as error:
            run.log.withdraw(entry)
            if new_run is not None:
                self._runs.remove(run)
            where = "the database" if isinstance(error, DatabaseError) else "disk or object store"
            refusal = Unavailable(f"the request could not be written to {where}: {error}", 5.0)
            written.set_exception(refusal)
            written.exception()
            raise refusal from error
        finally:
            del self._writing[entry.request_id]
            if not written.done():
                written.set_result(None)
        self._promises.add(entry.request_id, run.tenant)
        run.log.accept(entry)
        run.use(self._clock.monotonic())
        self._on_accepted(run)
        return entry.request_id

    async def _write(
        self, run: Run, entry: Entry, asked: Submission, new_run: RunRow | None
    ) -> None:
        """Write the body, then the row that names it. Both are on disk when this returns; if it
        raises, neither counts."""
        row = self._row(run, entry)
        inline = asked.body if entry.payload_blob is None else None

        def insert(db: Transaction) -> None:
            if new_run is not None:
                runs_table.insert(db, new_run)
            table.insert(db, row, inline)

        draft = asked.draft or self._draft(entry)
        try:
            if draft is not None:
                await self._make_durable(draft, asked)
                draft.kept = True
            await self._store.write(insert)
        except (OSError, DatabaseError):
            self._store.post(table.forget, entry.request_id)
            if draft is not None:
                draft.kept = False
                if asked.draft is None:
                    self._blobs.delete(draft.blob)
            raise

    def _draft(self, entry: Entry) -> Draft | None:
        return None if entry.payload_blob is None else Draft(entry.payload_blob)

    async def _make_durable(self, draft: Draft, asked: Submission) -> None:
        if asked.draft is None:
            await at_store(self._blobs.put, draft.blob, asked.body)
        if draft.error is not None:
            raise draft.error

    async def _accept_late(self, run: Run, asked: Submission) -> str:
        """Record an operation that arrived after its turn, as failed."""
        entry = replace(
            self._entry(run, asked), state="failed", payload_blob=None, body=None, content=None
        )
        outcome = failure(
            "user",
            f"seq_id {asked.seq_id} arrived after a later operation had run: "
            "it was waited for and then skipped; send it again with a new number",
        )
        now = self._clock.now()
        finish = Finish(
            entry.request_id, "failed", "json", outcome.body, None, len(outcome.body), now
        )

        def insert(db: Transaction) -> None:
            table.insert(db, self._row(run, entry), b"")
            table.finish(db, finish)

        run.log.admit(entry)
        await self._store.write(insert)
        promise = self._promises.add(entry.request_id, run.tenant)
        promise.resolve(outcome)
        self._promises.retire(promise)
        return entry.request_id

    def _entry(self, run: Run, asked: Submission) -> Entry:
        size = len(asked.body)
        blob = None
        if size > self._settings.inline_bytes:
            blob = self._blobs.reserve(size) if asked.draft is None else asked.draft.blob
        held = sum(other.log.held_bytes for other in self._runs)
        fresh = run.log.pending_count() < _FRESH and held + size <= _FRESH_BYTES
        return Entry(
            request_id=f"{run.model_id}:{asked.seq_id}",
            seq_id=asked.seq_id,
            kind=asked.kind,
            digest=asked.digest,
            arrived=self._clock.monotonic(),
            payload_bytes=size,
            payload_blob=blob,
            body=asked.body if fresh else None,
            content=asked.content if fresh else None,
        )

    def _row(self, run: Run, entry: Entry) -> OperationRow:
        return OperationRow(
            request_id=entry.request_id,
            model_id=run.model_id,
            seq_id=entry.seq_id,
            tenant=run.tenant,
            kind=entry.kind.name,
            digest=entry.digest,
            payload_bytes=entry.payload_bytes,
            accepted_at=self._clock.now(),
            payload_blob=entry.payload_blob,
        )

    def _check_quota(self, run: Run, asked: Submission) -> None:
        limits = self._settings.limits
        if run.log.pending_count() >= limits.pending_operations_per_run:
            raise Busy(
                f"{limits.pending_operations_per_run} operations of this run are waiting: "
                "collect some results first",
                1.0,
            )
        self._check_bytes(run.tenant, len(asked.body))

    def _check_bytes(self, tenant: str, size: int) -> None:
        limits = self._settings.limits_of(tenant)
        retained = {other: other.log.retained_bytes for other in self._runs}
        mine = sum(held for other, held in retained.items() if other.tenant == tenant)
        if mine + size > limits.pending_bytes_per_tenant:
            raise Busy("this key's waiting operations fill their share of the disk", 5.0)
        if sum(retained.values()) + size > limits.pending_bytes:
            raise Busy("the waiting operations fill the disk space set aside for them", 5.0)
