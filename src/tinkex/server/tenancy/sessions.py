"""Sessions: opened by a client, kept alive by heartbeats, ended by it or by long silence.

An ended session stays readable and its checkpoints stay; its heartbeats are answered with `Gone`.
Silence counts only time in which the server was listening.
"""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple

from tinkex.server.clock import Clock
from tinkex.server.listening import Listening
from tinkex.server.refusals import Busy, Gone, NotFound
from tinkex.server.settings import Settings
from tinkex.server.storage.database import Store
from tinkex.server.storage.database import sessions as table
from tinkex.server.storage.database.sessions import SessionRow

_TOUCH_EVERY_S = 30.0


class NewSession(NamedTuple):
    """What a client says about the session it opens."""

    tags: tuple[str, ...]  # of the client
    user_metadata: dict[str, Any]  # the client's own notes
    sdk_version: str | None  # as the client says
    project_id: str | None  # the client's grouping of runs
    display_name: str | None  # for people
    idempotency_key: str | None  # the same one opens one session


class Sessions:
    """The sessions that are alive, in memory; all of them, in the store."""

    def __init__(
        self, store: Store, clock: Clock, listening: Listening, settings: Settings
    ) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self._alive: dict[str, SessionRow] = {}
        self._written: dict[str, float] = {}
        self._heard: dict[str, float] = {}
        self._opening: Counter[str] = Counter()
        """By tenant: not alive yet, and counted, or many at once would all be let in."""
        self._listening = listening

    async def load(self) -> None:
        """Load the sessions that were alive when the server stopped; their silence starts anew."""
        now = self._clock.now()
        for row in await self._store.query(table.active):
            self._alive[row.session_id] = replace(row, seen_at=now)

    async def create(self, tenant: str, asked: NewSession) -> str:
        """Open a session; the same idempotency key again gives the same one."""
        known = await self._known(tenant, asked.idempotency_key)
        if known is not None:
            return known.session_id
        self._check_quota(tenant)
        self._opening[tenant] += 1
        try:
            stored = await self._store.write(table.insert_once, self._new(tenant, asked))
        finally:
            self._opening[tenant] -= 1
            self._opening += Counter()  # forgets the zeros
        self._alive.setdefault(stored.session_id, stored)
        self._heard.setdefault(stored.session_id, self._listening.seconds)
        return stored.session_id

    async def owned(self, tenant: str, session_id: str) -> SessionRow:
        """The tenant's session, alive or ended."""
        row = self._alive.get(session_id) or await self._store.read(table.get, session_id)
        if row is None or row.tenant != tenant:
            raise NotFound(f"no session {session_id!r}")
        return row

    async def alive(self, tenant: str, session_id: str) -> SessionRow:
        """The tenant's session, for a new request; this counts as a sign of life."""
        row = await self.owned(tenant, session_id)
        if session_id not in self._alive:
            raise Gone(f"session {session_id!r} has ended ({row.status}): open a new one")
        return self._touch(row)

    def is_alive(self, session_id: str) -> bool:
        return session_id in self._alive

    def silent_s(self, session_id: str) -> float:
        """For how long nothing was heard of a session, while the server listened."""
        return self._listening.seconds - self._heard.get(session_id, 0.0)

    async def finish(self, tenant: str, session_id: str, reason: str, detail: str | None) -> None:
        """End a session at its client's request; the first reason wins."""
        await self.owned(tenant, session_id)
        await self._end(session_id, "finished", reason, detail)

    async def expire_silent(self) -> list[str]:
        """End the sessions that were silent for too long; return them."""
        oldest = self._listening.seconds - self._settings.timings.session_expiry_s
        silent = [one for one in self._alive if self._heard.setdefault(one, 0.0) < oldest]
        for session_id in silent:
            await self._end(session_id, "expired", None, "no heartbeat")
        return silent

    async def _end(
        self, session_id: str, status: str, reason: str | None, detail: str | None
    ) -> None:
        now = self._clock.now()
        await self._store.write(table.end, session_id, status, reason, detail, now)
        self._alive.pop(session_id, None)
        self._written.pop(session_id, None)
        self._heard.pop(session_id, None)

    def _touch(self, row: SessionRow) -> SessionRow:
        now = self._clock.now()
        row = self._alive[row.session_id] = replace(row, seen_at=now)
        self._heard[row.session_id] = self._listening.seconds
        if now - self._written.get(row.session_id, row.created_at) >= _TOUCH_EVERY_S:
            self._written[row.session_id] = now
            self._store.post(table.touch, row.session_id, now)
        return row

    async def _known(self, tenant: str, key: str | None) -> SessionRow | None:
        return None if key is None else await self._store.read(table.by_key, tenant, key)

    def _new(self, tenant: str, asked: NewSession) -> SessionRow:
        now = self._clock.now()
        return SessionRow(
            session_id=str(uuid.uuid4()),
            tenant=tenant,
            created_at=now,
            seen_at=now,
            tags=asked.tags,
            user_metadata=asked.user_metadata,
            sdk_version=asked.sdk_version,
            project_id=asked.project_id,
            display_name=asked.display_name,
            idempotency_key=asked.idempotency_key,
        )

    def _check_quota(self, tenant: str) -> None:
        limit = self._settings.limits_of(tenant).sessions_per_tenant
        alive = sum(row.tenant == tenant for row in self._alive.values())
        if alive + self._opening[tenant] >= limit:
            raise Busy(f"{limit} sessions are open for this key: finish some first", 30.0)
