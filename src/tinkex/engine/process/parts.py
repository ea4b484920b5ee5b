"""Downloads a file in parallel parts: written where they belong, hashed in order.

A part goes from a small buffer straight into the file, and is hashed from there while other parts
are still coming.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

PART_BYTES = 16 << 20
"""Bytes of a part. Smaller parts cost more requests; of larger ones, fewer are complete early
enough to be hashed meanwhile."""
_AT_ONCE = 6

Write: TypeAlias = Callable[[int, Any], None]
"""Takes an offset in the file and a buffer."""
Bring: TypeAlias = Callable[[int, int, Write], None]
"""Gets so many bytes from an offset on and writes them, in any thread."""


class NotWritten(Exception):
    """The file could not be written; the cause says why. Not an `OSError`, because fetching the
    part again does not help."""


def assemble(target: Path, size: int, bring: Bring, part: int) -> str:
    """Fill a new file of `size` bytes, `part` of them by each call; returns the SHA-256 of its
    content. Raises what `bring` raises, or `OSError` if the file cannot be written."""
    digest, starts = hashlib.sha256(), range(0, size, part)
    with target.open("w+b") as file, ThreadPoolExecutor(_AT_ONCE) as pool:
        file.truncate(size)
        write = partial(_write, file.fileno())
        begun = (pool.submit(bring, at, min(part, size - at), write) for at in starts)
        try:
            for at, come in zip(starts, _some_ahead(begun), strict=True):
                come.result()
                _hash(digest, file, at, min(part, size - at))
        except NotWritten as error:
            raise error.__cause__ or error from None
        finally:
            pool.shutdown(cancel_futures=True)
    return digest.hexdigest()


def _some_ahead(begun: Iterator[Future[None]]) -> Iterator[Future[None]]:
    """Yields each part with a few after it begun, not more. If all were being fetched at once,
    hashing would get no processor until the last one arrived."""
    coming = deque(islice(begun, _AT_ONCE))
    while coming:
        yield coming.popleft()
        coming.extend(islice(begun, 1))


def _hash(digest: Any, file: BinaryIO, at: int, length: int) -> None:
    """Hash the part in memory: nothing is read again."""
    before = at % mmap.ALLOCATIONGRANULARITY
    with (
        mmap.mmap(file.fileno(), before + length, offset=at - before, prot=mmap.PROT_READ) as found,
        memoryview(found) as content,
        content[before:] as part,
    ):
        digest.update(part)


def _write(file: int, offset: int, content: Any) -> None:
    with memoryview(content) as left:
        done = 0
        while done < len(left):
            try:
                done += os.pwrite(file, left[done:], offset + done)
            except OSError as error:
                raise NotWritten from error
