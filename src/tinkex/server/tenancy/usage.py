"""Counts what tenants use, and writes it to the database a few seconds later.

Amounts accumulate in memory between flushes, so a sample costs no write of its own. A crash loses
at most what accumulated since the last flush. Knows no prices.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from tinkex.server.clock import Clock
from tinkex.server.storage.database import Store, sessions
from tinkex.server.storage.database import usage as table
from tinkex.server.storage.database.transactions import Transaction
from tinkex.server.storage.database.usage import Measure, Source, Use

_Key = tuple[int, Source, Measure, bool]
_TENANTS = 1024


class Meter:
    """Use since the last flush, by hour, source and measure; `totals` since the start by measure
    alone, and `by_tenant` for recent users."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._amounts: dict[_Key, float] = {}
        self.totals: dict[Measure, float] = {}
        self.by_tenant: OrderedDict[str, dict[Measure, float]] = OrderedDict()

    def add(self, source: Source, measure: Measure, amount: float, *, cached: bool = False) -> None:
        """Count an amount; the session's project is looked up when it is written."""
        if amount:
            key = (table.hour_of(self._clock.now()), source, measure, cached)
            self._amounts[key] = self._amounts.get(key, 0.0) + amount
            self.totals[measure] = self.totals.get(measure, 0.0) + amount
            self._add_to_tenant(source.tenant, measure, amount)

    def _add_to_tenant(self, tenant: str, measure: Measure, amount: float) -> None:
        used = self.by_tenant.setdefault(tenant, {})
        used[measure] = used.get(measure, 0.0) + amount
        self.by_tenant.move_to_end(tenant)
        if len(self.by_tenant) > _TENANTS:
            self.by_tenant.popitem(last=False)

    async def flush(self) -> None:
        """Write the accumulated amounts to the database."""
        amounts, self._amounts = self._amounts, {}
        if amounts:
            await self._store.write(_write, amounts)

    async def between(self, tenant: str, start: float, end: float) -> list[Use]:
        """A tenant's use in the hours that start in [start, end), up to this moment."""
        await self.flush()
        now = self._clock.now()
        await self._store.write(table.accrue_tenant, tenant, now)
        return await self._store.browse(tenant, table.between, tenant, start, end)


def _write(connection: Transaction, amounts: dict[_Key, float]) -> None:
    for (hour, source, measure, cached), amount in amounts.items():
        session = sessions.get(connection, source.session_id)
        project = (session.project_id if session else None) or ""
        use = Use(hour, replace(source, project_id=project), measure, amount, cached)
        table.add(connection, use)
