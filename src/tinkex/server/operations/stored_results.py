"""Results of training on disk: read back, noted as fetched, forgotten when they are old."""

from __future__ import annotations

import asyncio

from tinkex.server.clock import Clock
from tinkex.server.listening import Listening
from tinkex.server.promises import Outcome
from tinkex.server.refusals import Gone, Unavailable
from tinkex.server.settings import Timings
from tinkex.server.storage.database import kept_samples
from tinkex.server.storage.database import operations as table
from tinkex.server.storage.database.operations import OperationRow
from tinkex.server.storage.database.transactions import Transaction
from tinkex.server.storage.home_storage import HomeStorage
from tinkex.server.storage.objects.store import StoreDown
from tinkex.server.storage.store_threads import at_store


class StoredResults:
    """Stored results. They may be fetched again until they expire."""

    def __init__(
        self, storage: HomeStorage, listening: Listening, clock: Clock, timings: Timings
    ) -> None:
        self._store, self._blobs = storage.store, storage.blobs
        self._listening = listening
        self._clock = clock
        self._timings = timings
        self._fetched: set[str] = set()

    async def find(self, tenant: str, request_id: str) -> Outcome | None:
        """The result of a tenant's operation. Raises `Gone` if it has expired."""
        row = await self._store.query(table.get, request_id)
        if row is None or row.tenant != tenant:
            return None
        body = await self.body(row)
        if body is None or row.result_kind is None:
            raise Gone(f"the result of {row.request_id!r} was kept as long as promised")
        return Outcome(row.result_kind, body, failed=row.state == "failed")

    async def body(self, row: OperationRow) -> bytes | None:
        if row.result_blob is not None:
            try:
                return await at_store(self._blobs.get, row.result_blob)
            except StoreDown as error:
                raise Unavailable(str(error), 2.0) from error
        if row.result_kind is None:
            return None
        return await self._store.query(table.inline_result, row.request_id)

    def note_fetched(self, request_id: str) -> None:
        self._fetched.add(request_id)

    def flush(self) -> None:
        """Record which results were fetched."""
        fetched, self._fetched = self._fetched, set()
        if fetched:
            now = self._clock.now()
            self._store.post(table.mark_all_fetched, fetched, now)

    async def forget_old(self) -> None:
        """Forget requests of runs that are over, and samples, long after the runs themselves."""
        before = self._listening.before(self._timings.record_retention_s)

        def work(db: Transaction) -> None:
            table.forget_old(db, before)
            kept_samples.delete_old(db, before)

        await self._store.write(work)

    async def expire(self) -> None:
        """Forget results that are old, or were fetched a while ago."""
        finished = self._listening.before(self._timings.result_retention_s)
        fetched = self._listening.before(self._timings.fetched_result_retention_s)
        blobs = await self._store.write(table.expire_results, finished, fetched)
        for name in blobs:
            await asyncio.to_thread(self._blobs.delete, name)
