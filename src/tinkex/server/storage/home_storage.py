"""All that a server keeps in its home, as one value: rows, bodies, results, folders."""

from __future__ import annotations

from dataclasses import dataclass

from tinkex.server.storage.blobs import BlobStore
from tinkex.server.storage.database import Store
from tinkex.server.storage.folders import Folders
from tinkex.server.storage.pins import Pins


@dataclass(frozen=True, slots=True)
class HomeStorage:
    """What outlives the server."""

    store: Store
    blobs: BlobStore
    """Bodies and results too large for a row."""
    weights: Folders
    """Of checkpoints and samplers."""
    snapshots: Folders
    """From which lost runs are rebuilt."""
    pins: Pins
    """What loads read, until a snapshot covers them."""
