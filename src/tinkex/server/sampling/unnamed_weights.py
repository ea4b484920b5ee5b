"""Unnamed sampler weights: kept while they may be used, within a bound.

A reinforcement-learning loop makes some in every step and uses the newest. Weights of a sampler
that is in use, was used a short while ago, or is among the newest of its session are live and never
deleted. The others are deleted, least recently used first, when their tenant exceeds its limit,
when the disk runs low, or on request. The log says why each time.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from tinkex.server.clock import Clock
from tinkex.server.listening import Listening
from tinkex.server.refusals import Refusal
from tinkex.server.sampling.samplers import Samplers
from tinkex.server.settings import Settings
from tinkex.server.storage.database import checkpoints
from tinkex.server.storage.database import samplers as table
from tinkex.server.storage.database.samplers import SamplerRow, Unnamed
from tinkex.server.storage.database.transactions import Transaction
from tinkex.server.storage.home_storage import HomeStorage
from tinkex.server.storage.store_threads import at_store

logger = logging.getLogger(__name__)

NEWEST_KEPT = 4
"""Newest weights kept per session: a loop may still be sampling from those before the last."""

_YOUNG_S = 600.0
_ROOM = 0.9
"""When room is made, usage goes down to this share of the limit, so that not every save has to make
room."""


class Freed(NamedTuple):
    """What was deleted."""

    samplers: int = 0
    size_bytes: int = 0


class UnnamedWeights:
    """`busy` gives the samplers with a sample under way."""

    def __init__(
        self,
        storage: HomeStorage,
        samplers: Samplers,
        busy: Callable[[], Collection[str]],
        clock: Clock,
        listening: Listening,
        settings: Settings,
    ) -> None:
        self._store, self._folders, self._pins = storage.store, storage.weights, storage.pins
        self._samplers = samplers
        self._busy = busy
        self._listening = listening
        self._limit = settings.limits.unnamed_sampler_bytes_per_tenant
        self._idle_s = settings.timings.unnamed_sampler_idle_s
        self._kept_s = settings.timings.sampler_retention_s
        self._started = clock.now()
        self._sizes: dict[str, int] = {}
        self._turn = asyncio.Lock()

    async def admit(self, tenant: str) -> None:
        """Make room for one more of a tenant's, or refuse it with what stands in the way."""
        async with self._turn:
            rows = await self._rows(tenant)
            used = self._size(rows)
            if used < self._limit:
                return
            why = f"weights without a name of one key take {used} bytes, the limit {self._limit}"
            used -= (await self._let_go(rows, used - int(_ROOM * self._limit), why)).size_bytes
            if used >= self._limit:
                raise Refusal(
                    f"{why}, and all were used within {self._idle_s:.0f} s: wait, close sessions, "
                    "or raise --limit unnamed_sampler_bytes_per_tenant"
                )

    async def known(self, sampler_id: str) -> SamplerRow | None:
        return await self._store.read(table.get, sampler_id)

    async def promised(self, folder: str) -> bool:
        """Whether a sampler was told that it serves this folder."""
        return await self._store.read(table.serves, folder)

    async def promise(self, row: SamplerRow) -> None:
        """Make a sampler whose folder exists or will exist; once."""
        await self._store.write(table.insert_once, row)

    async def collect(self, why: str) -> Freed:
        """Delete all tenants' weights that are not live."""
        async with self._turn:
            rows = await self._rows(None)
            return await self._let_go(rows, self._size(rows), why)

    async def collectable(self) -> Freed:
        """What `collect` would delete now."""
        rows = self._expendable(await self._rows(None))
        return Freed(len(rows), self._size(rows))

    async def delete_orphans(self, all_ages: bool = False) -> None:
        """Delete folders that neither a checkpoint nor a sampler names. A young one may be sealed
        and not yet named, so it is left alone unless nothing is being saved."""
        made_before = math.inf if all_ages else self._listening.before(_YOUNG_S)
        present = await asyncio.to_thread(self._folders.names, made_before)
        if not present:
            return
        ended = self._listening.before(self._kept_s)

        def named(db: Transaction) -> set[str]:
            return checkpoints.folders(db) | table.folders(db, ended)

        for name in present - await self._store.query(named) - self._pins.folders():
            await at_store(self._folders.delete, name)

    async def _rows(self, tenant: str | None) -> list[Unnamed]:
        rows = await self._store.query(table.unnamed, tenant)
        new = [row.folder for row in rows if row.folder not in self._sizes]
        found = await asyncio.to_thread(lambda: {name: self._folders.size(name) for name in new})
        # One without bytes is still to be written: it is looked at again.
        self._sizes |= {name: size for name, size in found.items() if size}
        return rows

    def _size(self, rows: Iterable[Unnamed]) -> int:
        return sum(self._sizes.get(name, 0) for name in {row.folder for row in rows})

    async def _let_go(self, rows: list[Unnamed], wanted: int, why: str) -> Freed:
        chosen: list[Unnamed] = []
        for row in self._expendable(rows):
            if self._size(chosen) >= wanted:
                break
            chosen.append(row)
        if not chosen:
            return Freed()
        freed = Freed(len(chosen), self._size(chosen))
        ids = [row.sampler_id for row in chosen]
        await self._store.write(table.forget, ids)
        self._samplers.forget(ids)
        for row in chosen:
            await at_store(self._folders.delete, row.folder)
            self._sizes.pop(row.folder, None)
        text = "let go of %d samplers without a name, %d bytes: %s"
        logger.info(text, freed.samplers, freed.size_bytes, why)
        return freed

    def _expendable(self, rows: list[Unnamed]) -> list[Unnamed]:
        """Those that are not live, least recently used first, those of ended sessions before
        others."""
        busy, oldest = self._busy(), self._listening.before(self._idle_s)
        newer: Counter[str] = Counter()
        found = []
        for row in reversed(rows):  # newest first
            newer[row.session_id] += 1
            newest = newer[row.session_id] <= NEWEST_KEPT and not row.ended
            if not newest and row.sampler_id not in busy and self._used(row) < oldest:
                found.append(row)
        return sorted(found, key=lambda row: (not row.ended, self._used(row)))

    def _used(self, row: Unnamed) -> float:
        """When it was last used, as far as that is known after a restart."""
        known = self._samplers.used_at(row.sampler_id)
        since = row.created_at if row.ended else max(row.created_at, self._started)
        return since if known is None else max(known, since)
