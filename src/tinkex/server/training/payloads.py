"""The body of an accepted operation: from memory while it is fresh, otherwise from storage. And the
routes it replayed, for a repetition.
"""

from __future__ import annotations

from tinkex.server.operations.log import Entry
from tinkex.server.storage.database import operations as table
from tinkex.server.storage.home_storage import HomeStorage
from tinkex.server.storage.objects.store import patiently
from tinkex.server.storage.store_threads import at_store


class Bodies:
    """Reads bodies back. The bytes are exactly those that arrived."""

    def __init__(self, storage: HomeStorage) -> None:
        self._store, self._blobs = storage.store, storage.blobs

    async def of(self, entry: Entry) -> bytes:
        if entry.body is not None:
            return entry.body
        if entry.payload_blob is not None:
            get, blob = self._blobs.get, entry.payload_blob
            return await patiently(lambda: at_store(get, blob))
        body = await self._store.query(table.inline_payload, entry.request_id)
        assert body is not None, f"the body of {entry.request_id} is gone"
        return body

    async def routes_of(self, entry: Entry) -> bytes | None:
        """Those that a repeated operation replayed the first time."""
        if not entry.replay or entry.routes_blob is None:
            return None
        get, blob = self._blobs.get, entry.routes_blob
        return await patiently(lambda: at_store(get, blob))
