"""Recovery: clears away at a start what a crash left half-made.

It forgets only what was never acknowledged, and deletes only what no row names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from tinkex.server.storage.database import operations, snapshots
from tinkex.server.storage.database.transactions import Transaction
from tinkex.server.storage.home_storage import HomeStorage


async def clear_halves(storage: HomeStorage) -> None:
    """Forget operations and results whose bytes are not whole, then what no row names."""
    store, blobs, folders = storage.store, storage.blobs, storage.snapshots
    done = await _torn(storage, await store.query(operations.done_blobs))
    accepted = await _torn(storage, await store.query(operations.accepted_blobs))

    def work(db: Transaction) -> None:
        operations.reopen_all(db, done)
        operations.forget_all(db, accepted)

    await store.write(work)
    named = await store.query(operations.blob_names)
    await asyncio.to_thread(blobs.keep_only, named)
    kept = await store.query(snapshots.folders)
    for name in folders.names() - kept:
        await asyncio.to_thread(folders.delete, name)


async def clear_pins(storage: HomeStorage, pinning: Collection[str]) -> None:
    """Let go of what no operation of the `pinning` kinds may have to read again."""
    loads = await storage.store.query(operations.kept, pinning)
    await asyncio.to_thread(storage.pins.keep_only, loads)


async def _torn(storage: HomeStorage, blobs: list[tuple[str, str]]) -> list[str]:
    """Those operations whose blob is not whole."""

    torn = await asyncio.to_thread(storage.blobs.missing, [blob for _, blob in blobs])
    return [request_id for request_id, blob in blobs if blob in torn]
