"""Records how an operation ended, then wakes the waiting polls. In that order.

Row and result go to the disk at the same time. If a crash leaves a row without a whole result, the
next start undoes it, since nobody was told of it.

A full or failing disk costs only time: the result is kept in memory and written again until it is
durable, because it was computed from an accepted operation and must not be lost.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable
from typing import NamedTuple

from tinkex.server.clock import Clock
from tinkex.server.operations.base import Conclusion, Prepared
from tinkex.server.operations.log import Entry
from tinkex.server.operations.run import Run
from tinkex.server.promises import Outcome, Promises
from tinkex.server.protocol.forward_codec import same_result
from tinkex.server.protocol.outcomes import failure
from tinkex.server.recording.recorder import Recorder
from tinkex.server.refusals import Refusal
from tinkex.server.settings import Settings
from tinkex.server.storage.database import operations as table
from tinkex.server.storage.database import runs as runs_table
from tinkex.server.storage.database.operations import Finish
from tinkex.server.storage.database.points import Point
from tinkex.server.storage.database.transactions import DatabaseError, Transaction
from tinkex.server.storage.database.usage import Source
from tinkex.server.storage.home_storage import HomeStorage
from tinkex.server.storage.objects.store import patiently
from tinkex.server.storage.store_threads import at_store
from tinkex.server.tenancy.usage import Meter
from tinkex.server.training.progress_reports import Narrator

logger = logging.getLogger(__name__)

_RETRY_S = 1.0


class Reports(NamedTuple):
    """The parts that are told of every end."""

    meter: Meter
    narrator: Narrator
    recorder: Recorder


class Endings:
    """The last step of every operation."""

    def __init__(
        self,
        storage: HomeStorage,
        promises: Promises,
        reports: Reports,
        clock: Clock,
        settings: Settings,
    ) -> None:
        self._store, self._blobs = storage.store, storage.blobs
        self._promises = promises
        self._reports = reports
        self._clock = clock
        self._inline_bytes = settings.inline_bytes

    async def write(
        self, run: Run, entry: Entry, prepared: Prepared | None, conclusion: Conclusion
    ) -> bool:
        """Make an ending durable and known. Returns whether the operation failed after all."""
        while True:
            try:
                point = await self._commit(run, entry, prepared, conclusion)
                break
            except Refusal as refusal:
                conclusion = Conclusion(failure("user", refusal.detail))
            except (OSError, DatabaseError) as error:
                logger.error("the end of %s cannot be written: %s", entry.request_id, error)
                await asyncio.sleep(_RETRY_S)
        failed = conclusion.outcome.failed
        if prepared is not None and not failed:
            source = Source(run.tenant, run.row.session_id, "", run.row.base_model)
            self._reports.meter.add(source, "training", prepared.tokens)
        promise = self._promises.add(entry.request_id, run.tenant)
        promise.resolve(conclusion.outcome)
        self._promises.retire(promise)
        self._reports.narrator.ended(run, entry, prepared, conclusion)
        self._reports.recorder.ended(run, entry, conclusion, point)
        return failed

    def tell(self, run: Run, entry: Entry, outcome: Outcome) -> None:
        """Tell waiting polls an outcome that depends only on what is durable: if the rest of the
        operation is lost, repeating it gives the same. `write` follows."""
        self._promises.add(entry.request_id, run.tenant).resolve(outcome)

    async def _commit(
        self, run: Run, entry: Entry, prepared: Prepared | None, conclusion: Conclusion
    ) -> Point | None:
        """Returns what was added to the run's history."""
        outcome, now = conclusion.outcome, self._clock.now()
        size = len(outcome.body)
        blob = self._blobs.reserve(size) if size > self._inline_bytes else None
        tokens = 0 if prepared is None or outcome.failed else prepared.tokens
        routes = None if prepared is None or outcome.failed else prepared.routes
        routes_blob = None if routes is None else self._blobs.reserve(len(routes))
        finish = Finish(
            request_id=entry.request_id,
            state="failed" if outcome.failed else "done",
            result_kind=outcome.kind,
            result=None if blob else outcome.body,
            result_blob=blob,
            result_bytes=size,
            finished_at=now,
            tokens=tokens,
            routes_blob=routes_blob,
            routes_bytes=0 if routes is None else len(routes),
        )

        measured = self._reports.recorder.measured(run, entry, prepared, conclusion)

        def work(db: Transaction) -> Point | None:
            table.finish(db, finish)
            runs_table.touch(db, run.model_id, now)
            for write in conclusion.writes:
                write(db)
            return None if measured is None else measured.write(db)

        # Both begin now, not after whatever else the loop has to do.
        writes: list[Awaitable[Point | None]] = [self._store.write(work)]
        parts = [(blob, outcome.body), (routes_blob, routes)]
        blobs = [(name, body) for name, body in parts if name is not None and body is not None]
        writes += [at_store(self._blobs.put, name, body) for name, body in blobs]
        results = await asyncio.gather(*writes, return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            for name, _ in blobs:
                self._blobs.delete(name)
            raise errors[0]
        if routes_blob is not None and routes is not None:
            run.log.keep_routes(entry, routes_blob, len(routes))
        point = results[0]
        return point if isinstance(point, Point) else None

    async def matches(self, entry: Entry, outcome: Outcome) -> bool:
        """Whether a repeated operation gave the recorded result, if that is still known."""
        row = await self._store.query(table.get, entry.request_id)
        if row is None or row.result_kind is None:
            return True
        if row.result_blob is not None:
            get, blob = self._blobs.get, row.result_blob
            before: bytes | None = await patiently(lambda: at_store(get, blob))
        else:
            before = await self._store.query(table.inline_result, entry.request_id)
        return before is None or _same(before, outcome)


def _same(before: bytes, outcome: Outcome) -> bool:
    if outcome.kind == "json":
        return bool(json.loads(before) == json.loads(outcome.body))
    return same_result(before, outcome.body)
