"""What a session's requests took: operations from the store, recent samples from memory.

Keeps a bounded number of samples per session and of sessions; older ones are forgotten, because
samples are not logged. `trace_events` knows the file's form, this module where spans come from.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict, deque

from tinkex.server.clock import Clock
from tinkex.server.refusals import NotFound
from tinkex.server.storage.database import Store, sessions
from tinkex.server.tracing import trace_events
from tinkex.server.tracing.trace_events import Span

MOST_SAMPLES = 10_000
MOST_SESSIONS = 256
MOST_OPERATIONS = 50_000


class Traces:
    """The spans of this server's sessions."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._samples: OrderedDict[str, deque[Span]] = OrderedDict()

    def sample(self, session_id: str, span: Span) -> None:
        """Remember a finished sample."""
        spans = self._samples.setdefault(session_id, deque(maxlen=MOST_SAMPLES))
        spans.append(span)
        self._samples.move_to_end(session_id)
        if len(self._samples) > MOST_SESSIONS:
            self._samples.popitem(last=False)

    async def encode(self, tenant: str, session_id: str) -> bytes:
        """The trace file of a tenant's session."""
        operations = await self._store.query(lambda db: _operations(db, tenant, session_id))
        samples = list(self._samples.get(session_id, ()))
        return trace_events.encode(session_id, [*operations, *samples], self._clock.now())


def _operations(db: sqlite3.Connection, tenant: str, session_id: str) -> list[Span]:
    row = sessions.get(db, session_id)
    if row is None or row.tenant != tenant:
        raise NotFound(f"no session {session_id[:200]!r}")
    rows = db.execute(
        """SELECT o.model_id, o.kind, o.seq_id, o.state, o.tokens, o.accepted_at, o.finished_at
            FROM operations o JOIN runs r ON r.model_id = o.model_id
            WHERE r.session_id = ? ORDER BY o.accepted_at DESC LIMIT ?""",
        (session_id, MOST_OPERATIONS),
    )
    return [
        Span(
            track=model_id,
            name=kind,
            accepted=accepted,
            finished=finished,
            args={"seq_id": seq_id, "state": state, "tokens": tokens},
        )
        for model_id, kind, seq_id, state, tokens, accepted, finished in rows
    ]
