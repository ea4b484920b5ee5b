"""Custom losses: checked by an engine when uploaded, kept, and sent along with each use.

A loss belongs to the session that made it and to no model; it goes when the session has ended and
its last run with it. No engine keeps one, so none can run out of room for them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections import defaultdict, deque
from collections.abc import Collection
from typing import Any

from tinkex.engine.messages import CheckLoss, CustomLoss
from tinkex.server.clock import Clock
from tinkex.server.engines.engine import CommandFailed, EngineLost
from tinkex.server.engines.pool import Engines
from tinkex.server.promises import Outcome, Promise, Promises
from tinkex.server.protocol.outcomes import failure, success
from tinkex.server.refusals import NotFound, Refusal
from tinkex.server.settings import MIB, Limits
from tinkex.server.storage.database import Store
from tinkex.server.storage.database import losses as table
from tinkex.server.storage.database.losses import LossRow
from tinkex.server.storage.database.transactions import DatabaseError, Transaction

logger = logging.getLogger(__name__)

REFUSED_KEPT = 256
"""Per tenant: reasons of failed uploads that can still be fetched."""


class Losses:
    """The custom losses of all sessions."""

    def __init__(
        self, store: Store, engines: Engines, promises: Promises, clock: Clock, limits: Limits
    ) -> None:
        self._store = store
        self._engines = engines
        self._promises = promises
        self._clock = clock
        self._limits = limits
        self._tasks: dict[str, tuple[bytes, asyncio.Task[None]]] = {}
        self._refused: defaultdict[str, deque[str]] = defaultdict(deque)

    async def create(
        self, tenant: str, session_id: str, number: int, name: str, spec: dict[str, Any]
    ) -> str:
        """Have a loss checked and stored; the same number again gives the same future."""
        loss_id = f"{session_id}:loss:{number}"
        digest = hashlib.sha256(json.dumps([name, spec], sort_keys=True).encode()).digest()
        row = LossRow(loss_id, session_id, tenant, name, spec, digest, self._clock.now())
        known, taken = await self._store.read(_known, tenant, loss_id)
        under_way = self._tasks.get(loss_id)
        before = under_way[0] if under_way else known.digest if known else digest
        if before != digest:
            raise Refusal(f"custom_loss_seq_id {number} was already used for another loss")
        if under_way is None and known is None:
            self._check_quota(taken)
            self._promises.add(loss_id, tenant)
            task = asyncio.get_running_loop().create_task(self._check(row))
            self._tasks[loss_id] = (digest, task)
        return loss_id

    async def outcome(self, tenant: str, loss_id: str) -> Outcome | None:
        """How the upload of a kept loss ended."""
        row = await self._store.query(table.get, loss_id)
        return _created(loss_id) if row is not None and row.tenant == tenant else None

    async def find(self, session_id: str, loss_id: str) -> CustomLoss:
        """A loss of this session, as an engine takes it."""
        row = await self._store.query(table.get, loss_id)
        if row is None or row.session_id != session_id:
            raise NotFound(
                f"no custom loss {loss_id[:200]!r} in this model's session: a loss can be used "
                f"in the session that made it, while that is open"
            )
        return _as_sent(row)

    async def free(self, in_use: Collection[str]) -> None:
        """Forget the losses of ended sessions, except those with runs still in use."""
        await self._store.write(table.delete_ended, in_use)

    async def stop(self) -> None:
        tasks = [task for _, task in self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _check_quota(self, taken: int) -> None:
        limit = self._limits.loss_bytes_per_tenant
        if taken >= limit:
            raise Refusal(
                f"the custom losses of this key's open sessions take {limit // MIB} MiB, the "
                f"limit: finish sessions that are no longer needed"
            )

    async def _check(self, row: LossRow) -> None:
        try:
            await self._accept(row)
            outcome = _created(row.loss_id)
        except CommandFailed as failed:
            outcome = failure("user" if failed.kind == "user" else "server", failed.message)
        except (OSError, DatabaseError) as error:
            logger.exception("custom loss %s could not be kept", row.loss_id)
            outcome = failure("server", f"the loss could not be kept: {error}")
        self._tasks.pop(row.loss_id, None)
        promise = self._promises.add(row.loss_id, row.tenant)
        promise.resolve(outcome)
        if outcome.failed:
            self._remember(promise)
        else:
            self._promises.retire(promise)

    async def _accept(self, row: LossRow) -> None:
        """Check and store it. Any engine will do, since none keeps what it checks."""
        pool = next(iter(self._engines.pools))
        while True:
            await pool.ready()
            engine = next(engine for engine in pool if engine.is_ready)
            try:
                await engine.submit(CheckLoss(f"{row.loss_id}:check", _as_sent(row)))
            except EngineLost:
                continue
            await self._store.write(table.insert_once, row)
            return

    def _remember(self, refused: Promise) -> None:
        """Keep the reason of a refused loss. It is in memory only, bounded per tenant."""
        newest = self._refused[refused.tenant]
        newest.append(refused.request_id)
        while len(newest) > REFUSED_KEPT:
            self._promises.drop(newest.popleft())


def _known(db: Transaction, tenant: str, loss_id: str) -> tuple[LossRow | None, int]:
    """The loss, if it is stored already, and the bytes of all of its tenant's losses."""
    return table.get(db, loss_id), table.size(db, tenant)


def _created(loss_id: str) -> Outcome:
    return success({"loss_id": loss_id, "type": "create_custom_loss"})


def _as_sent(row: LossRow) -> CustomLoss:
    inputs = tuple((entry["name"], entry["rank"]) for entry in row.spec["inputs"])
    return CustomLoss(row.tenant, row.digest, inputs, tuple(row.spec["nodes"]))
