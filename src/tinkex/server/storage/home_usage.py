"""What takes room in a home, by purpose. Reads only; works beside a running server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

from tinkex.server.storage.database import checkpoints, samplers
from tinkex.server.storage.database.sqlite import only_reading
from tinkex.server.storage.database.transactions import Transaction
from tinkex.server.storage.home_rows import DATABASE_VARIABLE, WrongRows, mark_of

KINDS = {
    "checkpoints": "checkpoints with a name: delete some, or give them a time to live",
    "samplers": "samplers without a name: gc takes those not in use",
    "other weights": "weights that samplers or copies still hold: they go by themselves",
    "snapshots": "states that live runs are rebuilt from: they go with their runs",
    "payloads": "data and results of operations: they go with their runs, or after a day",
    "cache": "copies of what is in the object store: they go when room is needed",
    "exports": "files made for downloads: they go after an hour",
    "database": "the records of everything",
}
"""In the order they are shown, with what becomes of them."""


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of thing: how many there are and what they take."""

    kind: str
    count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class HomeUsage:
    """`free_bytes` is what the disk has left."""

    root: Path
    parts: tuple[Part, ...]
    free_bytes: int

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)


def measure(root: Path) -> HomeUsage:
    """What lies in a home now. Files with several names are counted once, where they come first."""
    seen: set[tuple[int, int]] = set()
    parts = tuple(Part(kind, *_sum(places, seen)) for kind, places in _places(root).items())
    return HomeUsage(root, parts, shutil.disk_usage(root).free)


def _places(root: Path) -> dict[str, list[Path]]:
    named, unnamed = _known_weights(root)
    weights = {path.name: path for path in _inside(root / "weights")}
    places = {
        "checkpoints": [weights[name] for name in sorted(named & weights.keys())],
        "samplers": [weights[name] for name in sorted(unnamed & weights.keys())],
        "other weights": [weights[name] for name in sorted(weights.keys() - named - unnamed)],
        "snapshots": [*_inside(root / "snapshots"), *_inside(root / "pins")],
        "payloads": _inside(root / "payloads"),
        "cache": [path for kind in _inside(root / "cache") for path in _inside(kind)],
        "exports": _inside(root / "exports"),
        "database": sorted(root.glob("tinkex.db*")),
    }
    assert places.keys() == KINDS.keys()
    return places


def _known_weights(root: Path) -> tuple[set[str], set[str]]:
    """Folders that checkpoints name, and folders that only a nameless sampler does."""
    with _rows(root) as db:
        if db is None:
            return set(), set()
        return checkpoints.folders(db), {row.folder for row in samplers.unnamed(db)}


def _rows(root: Path) -> AbstractContextManager[Transaction | None]:
    """Where they are, beside a server that may be working with them."""
    if mark_of(root) is None:
        file = root / "tinkex.db"
        return only_reading(file) if file.is_file() else nullcontext()
    url = os.environ.get(DATABASE_VARIABLE)
    if not url:
        raise WrongRows(f"{root} keeps its rows in PostgreSQL: say where with {DATABASE_VARIABLE}")
    from tinkex.server.storage.database.postgres.connection import PostgresConnection

    return closing(PostgresConnection(url))


def _inside(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _sum(places: list[Path], seen: set[tuple[int, int]]) -> tuple[int, int]:
    size = 0
    for place in places:
        for found in _files(place):
            if (found.st_dev, found.st_ino) not in seen:
                seen.add((found.st_dev, found.st_ino))
                size += found.st_size
    return len(places), size


def _files(place: Path) -> Iterator[os.stat_result]:
    """Of a file or all files below a folder; what is deleted meanwhile is passed over."""
    paths = [place, *place.rglob("*")] if place.is_dir() else [place]
    for path in paths:
        try:
            found = path.stat()
        except FileNotFoundError:
            continue
        if path.is_file():
            yield found
