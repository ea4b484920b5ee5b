"""A folder as a tar stream, made while it is read; its length is known before the first byte.

Knows nothing of checkpoints or HTTP. Entries are plain files with fixed owner and mode, so that the
same folder always gives the same bytes.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

_BLOCK = 512
_READ = 1 << 18


class Archive:
    """The tar of `names` (relative files of `folder`). `size` bytes will be produced."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._entries = [(folder / name, _entry(folder / name, name)) for name in sorted(names)]
        self.size = sum(_length(entry) for _, entry in self._entries) + 2 * _BLOCK

    def __iter__(self) -> Iterator[bytes]:
        return self.part(0, self.size)

    def part(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes from `start` up to, but not including, `end`; no file before them is read."""
        place = 0
        for path, entry in self._entries:
            head, tail = _header(entry), bytes(-entry.size % _BLOCK)
            yield from _within(head, start - place, end - place)
            place += len(head)
            yield from _content(path, entry.size, start - place, end - place)
            place += entry.size
            yield from _within(tail, start - place, end - place)
            place += len(tail)
        yield from _within(bytes(2 * _BLOCK), start - place, end - place)


def pack(folder: Path) -> Iterator[bytes]:
    """All files of a folder."""
    return iter(Archive(folder, [path.name for path in folder.iterdir()]))


def _entry(path: Path, name: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size = path.stat().st_size
    entry.mode = 0o644
    return entry


def _header(entry: tarfile.TarInfo) -> bytes:
    return entry.tobuf(tarfile.PAX_FORMAT)


def _length(entry: tarfile.TarInfo) -> int:
    return len(_header(entry)) + entry.size + (-entry.size % _BLOCK)


def _within(data: bytes, start: int, end: int) -> Iterator[bytes]:
    part = data[max(0, start) : max(0, end)]
    if part:
        yield part


def _content(path: Path, size: int, start: int, end: int) -> Iterator[bytes]:
    """Exactly the bytes of a file of `size` in a range. A file that shrank meanwhile breaks the
    stream."""
    start, end = max(0, start), min(size, end)
    if start >= end:
        return
    with path.open("rb") as file:
        file.seek(start)
        while start < end:
            block = file.read(min(_READ, end - start))
            if not block:
                raise OSError(f"{path.name} became shorter while it was being archived")
            start += len(block)
            yield block
