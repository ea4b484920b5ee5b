"""Unpacks a tar archive that nobody vouches for.

Plain files only, inside one folder only, and never more than could reasonably be in it.
"""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from tinkex.cli.errors import CliError
from tinkex.cli.terminal.progress import Bar
from tinkex.cli.transfer.names import is_safe_name

MOST_FILES = 10_000
MOST_EXPANSION = 100
SMALL_ENOUGH = 64 << 20
_LONGEST_READ = 8 << 20  # longer reads than this are for headers no honest archive has
_COPY_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"


def unpack(archive: Path, folder: Path, bar: Bar) -> int:
    """Extracts `archive` into the existing, empty `folder`; returns the bytes of its files.

    Raises `CliError` when any entry is not a plain file, leads outside, or makes the whole larger
    than an honest archive is; the caller removes the folder then.
    """
    limit = max(SMALL_ENOUGH, MOST_EXPANSION * archive.stat().st_size)
    try:
        with archive.open("rb") as raw, _opened(raw, limit) as tar:
            return _extract(tar, folder, limit, bar)
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, OverflowError, ValueError) as error:
        raise _bad(str(error) or type(error).__name__) from error


def _opened(raw: BinaryIO, limit: int) -> tarfile.TarFile:
    packed = raw.peek(2)[:2] == _GZIP_MAGIC if hasattr(raw, "peek") else False
    content = gzip.GzipFile(fileobj=raw) if packed else raw
    return tarfile.open(fileobj=cast(IO[bytes], _Bounded(content, limit)), mode="r:")


def _extract(tar: tarfile.TarFile, folder: Path, limit: int, bar: Bar) -> int:
    """Looks at every entry before writing the first."""
    members = _checked(tar, limit)
    bar.extend(len(members))
    for member in members:
        _write(tar, member, folder)
        bar.advance(1)
    return sum(member.size for member in members)


def _checked(tar: tarfile.TarFile, limit: int) -> list[tarfile.TarInfo]:
    members: dict[str, tarfile.TarInfo] = {}
    left = limit
    for member in tar:
        name = member.name.removeprefix("./")
        if member.isdir():
            continue  # folders are made for the files in them
        if not is_safe_name(name):
            raise _bad(f"an entry leads outside its folder: {name!r:.200}")
        if not member.isreg() or member.issparse():
            raise _bad(f"an entry is not a plain file: {name!r:.200}")
        left -= member.size
        if name in members or len(members) >= MOST_FILES or left < 0:
            raise _bad(f"it holds {name!r:.200} twice, over {MOST_FILES} files or {limit} bytes")
        member.name = name
        members[name] = member
    return list(members.values())


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    path = folder / member.name
    path.parent.mkdir(parents=True, exist_ok=True)
    content = tar.extractfile(member)
    if content is None:
        raise _bad(f"an entry has no content: {member.name!r:.200}")
    with path.open("xb") as file:
        left = member.size
        while left:
            block = content.read(min(_COPY_BYTES, left))
            if not block:
                raise _bad(f"{member.name!r:.200} ends early")
            file.write(block)
            left -= len(block)


class _Bounded:
    """A file whose reader may not take more than an honest archive holds."""

    def __init__(self, content: Any, limit: int) -> None:
        self._content = content
        self._left = limit + _LONGEST_READ

    def read(self, size: int = -1) -> bytes:
        if size < 0 or size > _LONGEST_READ:
            raise _bad("it has an oversized header")
        block: bytes = self._content.read(size)
        self._left -= len(block)
        if self._left < 0:
            raise _bad("it unpacks to far more than it is")
        return block

    def seek(self, offset: int, whence: int = 0) -> int:
        position: int = self._content.seek(offset, whence)
        return position

    def tell(self) -> int:
        position: int = self._content.tell()
        return position


def _bad(reason: str) -> CliError:
    return CliError(
        f"Refused the archive: {reason}", next_step="Nothing was kept. Ask who made the checkpoint."
    )
