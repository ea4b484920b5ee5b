"""Answers polls: from a promise in memory, from the store, or with the reason why work still waits.

A finished training result is in the store and may be fetched again until it expires; the newest
ones are also kept in memory. A lost sample is `Gone`, so that its client submits it again.
"""

from __future__ import annotations

from typing import NamedTuple

from tinkex.server.operations.custom_losses import Losses
from tinkex.server.operations.queue_reasons import QueueReasons
from tinkex.server.operations.stored_results import StoredResults
from tinkex.server.promises import Outcome, Promise, Promises
from tinkex.server.refusals import NotFound
from tinkex.server.sampling.jobs import Sampling
from tinkex.server.settings import MIB

METADATA_BYTES = 1 * MIB


class Pending(NamedTuple):
    """No result yet, and why."""

    request_id: str
    queue_state: str
    reason: str


class Large(NamedTuple):
    """Finished, but so large that the client may want to make room first."""

    size: int


Answer = Outcome | Pending | Large


class Futures:
    """Answers polls for everything that was promised."""

    def __init__(
        self,
        promises: Promises,
        results: StoredResults,
        sampling: Sampling,
        losses: Losses,
        reasons: QueueReasons,
        hold_s: float,
    ) -> None:
        self._promises = promises
        self._results = results
        self._sampling = sampling
        self._losses = losses
        self._reasons = reasons
        self._hold_s = hold_s

    async def retrieve(self, tenant: str, request_id: str, metadata_first: bool) -> Answer:
        """The outcome of a promise, after waiting for it a while."""
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
        if not self._sampling.fetched(request_id):
            self._results.note_fetched(request_id)
        return outcome

    async def _stored(self, tenant: str, request_id: str) -> Outcome:
        outcome = await self._results.find(tenant, request_id)
        if outcome is not None:
            return outcome
        lost = await self._sampling.lost(tenant, request_id)
        if lost is not None:
            raise lost
        outcome = await self._losses.outcome(tenant, request_id)
        if outcome is None:
            raise NotFound(f"no future {request_id[:200]!r}")
        return outcome

    # ---- why it waits

    def _pending(self, promise: Promise) -> Pending:
        state, reason = self.explain(promise.request_id)
        return Pending(promise.request_id, state, reason)

    def explain(self, request_id: str) -> tuple[str, str]:
        """The queue state of something unfinished, and the reason in words."""
        return self._sampling.explain(request_id) or self._reasons.explain(request_id)
