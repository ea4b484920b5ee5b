"""What a session's requests took: operations from the store, recent samples from memory.

Keeps a bounded number of samples per session and of sessions; older ones are forgotten, because
samples are not logged. `trace_events` knows the file's form, this module where spans come from.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from functools import partial

from tinkex.server.clock import Clock
from tinkex.server.fair_threads import FairThreads
from tinkex.server.refusals import NotFound
from tinkex.server.storage.database import Store, operations, sessions
from tinkex.server.storage.database.transactions import Transaction
from tinkex.server.tracing import trace_events
from tinkex.server.tracing.trace_events import Span

MOST_SAMPLES = 10_000
MOST_SESSIONS = 256
MOST_OPERATIONS = 50_000


class Traces:
    """The spans of this server's sessions."""

    def __init__(self, store: Store, clock: Clock, threads: FairThreads) -> None:
        self._store = store
        self._clock = clock
        self._threads = threads
        self._samples: OrderedDict[str, deque[Span]] = OrderedDict()

    def sample(self, session_id: str, span: Span) -> None:
        """Remember a finished sample."""
        spans = self._samples.setdefault(session_id, deque(maxlen=MOST_SAMPLES))
        spans.append(span)
        self._samples.move_to_end(session_id)
        if len(self._samples) > MOST_SESSIONS:
            self._samples.popitem(last=False)

    async def encode(self, tenant: str, session_id: str) -> bytes:
        """The trace file of a tenant's session, made in the tenant's turn."""
        trained = await self._store.browse(tenant, _operations, tenant, session_id)
        spans = [*trained, *self._samples.get(session_id, ())]
        made = partial(trace_events.encode, session_id, spans, self._clock.now())
        return await self._threads.run(tenant, made)


def _operations(db: Transaction, tenant: str, session_id: str) -> list[Span]:
    row = sessions.get(db, session_id)
    if row is None or row.tenant != tenant:
        raise NotFound(f"no session {session_id[:200]!r}")
    return [
        Span(
            track=each.model_id,
            name=each.kind,
            accepted=each.accepted_at,
            finished=each.finished_at,
            args={"seq_id": each.seq_id, "state": each.state, "tokens": each.tokens},
        )
        for each in operations.newest_of_session(db, session_id, MOST_OPERATIONS)
    ]
