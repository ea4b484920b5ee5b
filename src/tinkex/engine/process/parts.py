"""Downloads a file in parallel parts, each written where it belongs and hashed in order meanwhile.

What arrives goes from a small buffer straight into the file, and is hashed from memory while the
rest is still coming. No byte is written twice: what was hashed is what is in the file.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

PART_BYTES = 16 << 20
"""The largest. Smaller ones cost more requests."""
_FIRST_BYTES = 1 << 20
_AT_ONCE = 6

Write: TypeAlias = Callable[[Any], None]
"""Takes the next bytes of a part, a buffer."""
Bring: TypeAlias = Callable[[int, int, Write], None]
"""Gets so many bytes from an offset on and writes them, in any thread."""


class NotWritten(Exception):
    """The file could not be written; the cause says why. Not an `OSError`, because fetching the
    part again does not help."""


def in_parts(size: int) -> Iterator[range]:
    """A file cut up so that the first bytes are here early: each part is as long as all before it,
    while several come at once."""
    start = 0
    while start < size:
        length = min(PART_BYTES, max(_FIRST_BYTES, start), size - start)
        yield range(start, start + length)
        start += length


def assemble(target: Path, size: int, parts: Iterable[range], bring: Bring) -> str:
    """Fill a new file of `size` bytes, one of its parts by each call; the SHA-256 of what came.
    Raises what `bring` raises, or `OSError` for a file that cannot be written."""
    digest = hashlib.sha256()
    with target.open("w+b") as file, ThreadPoolExecutor(_AT_ONCE) as pool:
        file.truncate(size)
        begun = (_Part(part, file, pool, bring) for part in parts)
        try:
            for part in _some_ahead(begun):
                for come in part.as_it_comes():
                    _hash(digest, file, come)
        except NotWritten as error:
            raise error.__cause__ or error from None
        finally:
            pool.shutdown(cancel_futures=True)
    return digest.hexdigest()


class _Part:
    """On its way in a thread of a pool, from the moment it is made."""

    def __init__(self, part: range, file: BinaryIO, pool: Executor, bring: Bring) -> None:
        self._part, self._file = part, file.fileno()
        self._end = part.start
        self._news = threading.Condition()
        self._bringing = pool.submit(bring, part.start, len(part), self._write)
        self._bringing.add_done_callback(self._tell)

    def as_it_comes(self) -> Iterator[range]:
        """Stretches of the file that are written, each once. Raises what bringing them raised."""
        start = self._part.start
        while (end := self._wait(start)) > start:
            yield range(start, end)
            start = end
        self._bringing.result()

    def _wait(self, known: int) -> int:
        with self._news:
            self._news.wait_for(lambda: self._end > known or self._bringing.done())
            return self._end

    def _write(self, content: Any) -> None:
        with memoryview(content) as left:
            if self._end + len(left) > self._part.stop:
                raise OSError("more came than the part that was asked for")
            done = 0
            while done < len(left):
                try:
                    done += os.pwrite(self._file, left[done:], self._end + done)
                except OSError as error:
                    raise NotWritten from error
        with self._news:
            self._end += done
            self._news.notify()

    def _tell(self, _: Future[None]) -> None:
        with self._news:
            self._news.notify()


def _some_ahead(begun: Iterator[_Part]) -> Iterator[_Part]:
    """Each with a few after it begun, not more: with all of them coming, the hashing of those that
    are here gets no processor until the last one has come, and is then waited for."""
    coming = deque(islice(begun, _AT_ONCE))
    while coming:
        yield coming.popleft()
        coming.extend(islice(begun, 1))


def _hash(digest: Any, file: BinaryIO, come: range) -> None:
    """Where it lies in memory: nothing is read."""
    before = come.start % mmap.ALLOCATIONGRANULARITY
    with (
        mmap.mmap(
            file.fileno(), before + len(come), offset=come.start - before, prot=mmap.PROT_READ
        ) as found,
        memoryview(found) as content,
        content[before:] as part,
    ):
        digest.update(part)
