"""All that a server keeps, with its bytes in an object store and a cache on this disk."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tinkex.server.storage.database import Store
from tinkex.server.storage.disk_watch import has_spare_room
from tinkex.server.storage.home_storage import HomeStorage
from tinkex.server.storage.objects.blobs import ObjectBlobs
from tinkex.server.storage.objects.cache import Cache
from tinkex.server.storage.objects.folders import ObjectFolders
from tinkex.server.storage.objects.pins import ObjectPins
from tinkex.server.storage.objects.remote import RemoteObjects
from tinkex.server.storage.objects.store import ObjectStore

PAYLOADS, WEIGHTS, SNAPSHOTS, PINS = "payloads", "weights", "snapshots", "pins"
"""Prefixes in the store."""


def object_storage(store: Store, objects: ObjectStore, root: Path, room: int) -> HomeStorage:
    """Storage whose cache lies in `root` and takes up to `room` bytes, less on a short disk."""
    cache = Cache(room, partial(has_spare_room, root))
    blobs = ObjectBlobs(objects, PAYLOADS)
    weights = ObjectFolders(root / WEIGHTS, objects, WEIGHTS, cache)
    snapshots = ObjectFolders(root / SNAPSHOTS, objects, SNAPSHOTS, cache)
    pins = ObjectPins(objects, PINS, weights, cache)
    remote = RemoteObjects(objects, cache, (weights, snapshots, pins, blobs))
    return HomeStorage(store, blobs, weights, snapshots, pins, remote)
