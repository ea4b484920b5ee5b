"""Large bodies and results on disk, in shared segment files so that each costs one sync.

A blob is a stretch of a segment file, followed by its checksum; its name says where it is. Its
bytes are durable when `put` returns. After a crash `is_whole` tells whether all of them are there.
A segment is deleted when nothing in it is needed any more. Knows nothing of what the bytes mean.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

from tinkex.server.storage.folders import sync_folder

_SEGMENT_BYTES = 16 * 1024 * 1024
_CHECKSUM_BYTES = 4


Meanwhile: TypeAlias = Callable[[], object] | None


class BlobStore(Protocol):
    """Immutable bytes. `reserve` names a place for so many bytes, which `put` then makes durable,
    from any thread, doing something else `meanwhile`; deleting what is gone is no error, and
    `missing` are those whose bytes are not all there."""

    def reserve(self, length: int) -> str: ...

    def put(self, name: str, data: bytes, meanwhile: Meanwhile = ...) -> None: ...

    def get(self, name: str) -> bytes: ...

    def delete(self, name: str) -> None: ...

    def missing(self, names: Iterable[str]) -> set[str]: ...

    def keep_only(self, names: Iterable[str]) -> None: ...


class _Place(NamedTuple):
    """Where a blob's bytes are; its name says so."""

    segment: int
    offset: int
    length: int

    @property
    def name(self) -> str:
        return f"{self.segment:08d}-{self.offset}-{self.length}"

    @classmethod
    def of(cls, name: str) -> _Place:
        segment, offset, length = name.split("-")
        return cls(int(segment), int(offset), int(length))


class SegmentBlobs:
    """A `BlobStore` in one directory. All but `reserve` block on the disk."""

    def __init__(self, root: Path, first: int = 1) -> None:
        """New segments are numbered from `first`, or from the newest existing one."""
        self._root = root
        root.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._needed: dict[int, int] = {}
        self._newest = max(first, max(self._existing(), default=0) + 1)
        self._end = 0
        self._named: set[int] = set()

    def reserve(self, length: int) -> str:
        """Reserve room for so many bytes. They must then be `put`, or the name deleted."""
        with self._lock:
            if self._end >= _SEGMENT_BYTES:
                self._newest, self._end = self._newest + 1, 0
            place = _Place(self._newest, self._end, length)
            self._end += length + _CHECKSUM_BYTES
            self._needed[self._newest] = self._needed.get(self._newest, 0) + 1
        return place.name

    def put(self, name: str, data: bytes, meanwhile: Meanwhile = None) -> None:
        """Write the bytes at the reserved place, and return when they are durable. `meanwhile` runs
        while the disk is busy with them; if it raises, nothing is promised about the bytes."""
        place = _Place.of(name)
        assert len(data) == place.length
        descriptor = os.open(self._path(place.segment), os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            _write(descriptor, data, place.offset)
            _write(descriptor, _checksum(data), place.offset + place.length)
            if meanwhile is not None:
                _start_writing(descriptor, place)
                meanwhile()
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        if place.segment not in self._named:
            sync_folder(self._root)
            self._named.add(place.segment)

    def get(self, name: str) -> bytes:
        """The bytes of a blob; `OSError` if they are damaged."""
        place = _Place.of(name)
        descriptor = os.open(self._path(place.segment), os.O_RDONLY)
        try:
            record = os.pread(descriptor, place.length + _CHECKSUM_BYTES, place.offset)
        finally:
            os.close(descriptor)
        data, checksum = record[: place.length], record[place.length :]
        if len(data) != place.length or checksum != _checksum(data):
            raise OSError(f"blob {name} is damaged")
        return data

    def delete(self, name: str) -> None:
        segment = _Place.of(name).segment
        with self._lock:
            self._needed[segment] = self._needed.get(segment, 1) - 1
            # One that was emptied while it was the newest goes with the next.
            empty = [
                each for each, left in self._needed.items() if left <= 0 and each != self._newest
            ]
            for each in empty:
                del self._needed[each]
        for each in empty:
            self._path(each).unlink(missing_ok=True)

    def missing(self, names: Iterable[str]) -> set[str]:
        return {name for name in names if not self.is_whole(name)}

    def is_whole(self, name: str) -> bool:
        try:
            self.get(name)
        except OSError:
            return False
        return True

    def keep_only(self, names: Iterable[str]) -> None:
        """After a start: these blobs are needed; segments with none of them are deleted."""
        with self._lock:
            self._needed = {}
            for name in names:
                segment = _Place.of(name).segment
                self._needed[segment] = self._needed.get(segment, 0) + 1
        for segment in self._existing():
            if segment not in self._needed:
                self._path(segment).unlink()

    def size_bytes(self) -> int:
        """What the segments take on disk."""
        return sum(self._path(segment).stat().st_size for segment in self._existing())

    def _existing(self) -> list[int]:
        return [int(path.stem) for path in self._root.glob("*.segment")]

    def _path(self, segment: int) -> Path:
        return self._root / f"{segment:08d}.segment"


def _checksum(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(_CHECKSUM_BYTES, "little")


def _start_writing(descriptor: int, place: _Place) -> None:
    """Let the kernel start writing now, so that the sync has less to wait for."""
    if hasattr(os, "posix_fadvise"):
        length = place.length + _CHECKSUM_BYTES
        os.posix_fadvise(descriptor, place.offset, length, os.POSIX_FADV_DONTNEED)


def _write(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
