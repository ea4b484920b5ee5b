"""Who owns what in a home. Asked only on behalf of the user who owns the home's files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinkex.server.storage.database import Store, checkpoints, runs, sessions
from tinkex.server.storage.database.transactions import Transaction


class Belongings:
    """Tenants by what they own."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def tenant(self, named: Mapping[str, Any]) -> str | None:
        """The owner of the run or session in a request's path."""

        def find(db: Transaction) -> str | None:
            run_id, session_id = named.get("training_run_id"), named.get("session_id")
            row = runs.get(db, run_id) if run_id else sessions.get(db, session_id or "")
            return None if row is None else row.tenant

        return await self._store.read(find)

    async def of_checkpoint(self, path: str) -> str | None:
        row = await self._store.read(checkpoints.get, path)
        return None if row is None else row.tenant
