"""Decodes a large body while it is being written to the disk: one thread for both.

The written body is a draft: it belongs to no operation until one is accepted that names it, and is
deleted otherwise. Accepts nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tinkex.server.fair_threads import FairThreads
from tinkex.server.protocol.forward_codec import Examined, examine
from tinkex.server.storage.blobs import BlobStore
from tinkex.server.storage.store_threads import at_store, is_apart


@dataclass(slots=True)
class Draft:
    """A body written ahead; `error` says why it is not durable. `kept` once a row may name it."""

    blob: str
    error: OSError | None = None
    kept: bool = False


class Intake:
    """Bodies as they come in, read in their tenants' turns."""

    def __init__(self, blobs: BlobStore, threads: FairThreads) -> None:
        self._blobs = blobs
        self._threads = threads

    async def read(self, tenant: str, body: bytes, write: bool) -> tuple[Examined, Draft | None]:
        """The decoded body and, if `write` asks for it, the draft. Raises `Refusal`."""
        if not write:
            return await self._threads.run(tenant, partial(examine, body)), None
        draft = Draft(self._blobs.reserve(len(body)))
        try:
            if (
                is_apart()
            ):  # a store that does not answer must not keep other bodies from being read
                return await at_store(self._read, body, draft), draft
            return await self._threads.run(tenant, partial(self._read, body, draft)), draft
        except BaseException:
            self.discard(draft)
            raise

    def discard(self, draft: Draft | None) -> None:
        """Delete a draft that no operation kept."""
        if draft is not None and not draft.kept:
            self._blobs.delete(draft.blob)

    def _read(self, body: bytes, draft: Draft) -> Examined:
        found: list[Examined] = []
        try:
            self._blobs.put(draft.blob, body, lambda: found.append(examine(body)))
        except OSError as error:
            draft.error = error
        return found[0] if found else examine(body)
