"""All that a server keeps in its home, as one value: rows, bodies, results, folders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinkex.server.storage.blobs import BlobStore
from tinkex.server.storage.database import Store
from tinkex.server.storage.folders import Folders
from tinkex.server.storage.pins import PinStore

if TYPE_CHECKING:
    from tinkex.server.storage.objects.remote import RemoteObjects


@dataclass(frozen=True, slots=True)
class HomeStorage:
    """What outlives the server."""

    store: Store  # the rows
    blobs: BlobStore
    """Bodies and results too large for a row."""
    weights: Folders
    """Of checkpoints and samplers."""
    snapshots: Folders
    """From which lost runs are rebuilt."""
    pins: PinStore
    """What loads read, until a snapshot covers them."""
    remote: RemoteObjects | None = None
    """The object store, if all but the rows is there and this disk only a cache."""
