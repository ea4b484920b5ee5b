"""A folder as a tar stream: made while it is read, its length known before the first byte.

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
        for path, entry in self._entries:
            yield _header(entry)
            yield from _content(path, entry.size)
            yield bytes(-entry.size % _BLOCK)
        yield bytes(2 * _BLOCK)


def _entry(path: Path, name: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size = path.stat().st_size
    entry.mode = 0o644
    return entry


def _header(entry: tarfile.TarInfo) -> bytes:
    return entry.tobuf(tarfile.PAX_FORMAT)


def _length(entry: tarfile.TarInfo) -> int:
    return len(_header(entry)) + entry.size + (-entry.size % _BLOCK)


def _content(path: Path, size: int) -> Iterator[bytes]:
    """Exactly `size` bytes; a file that shrank meanwhile breaks the stream instead of lying."""
    left = size
    with path.open("rb") as file:
        while left:
            block = file.read(min(_READ, left))
            if not block:
                raise OSError(f"{path.name} became shorter while it was being archived")
            left -= len(block)
            yield block
