"""Fetches one file, continuing where a cut left it, and checks what arrived.

Works on a path it may leave incomplete; who calls decides what becomes of an incomplete file.
"""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from tinkex.cli.errors import CliError
from tinkex.cli.terminal.progress import Bar
from tinkex.cli.transfer.source import Answer, Cut, Refused, Source

BUFFER_BYTES = 1 << 20
TRIES_WITHOUT_PROGRESS = 5
FIRST_DELAY_SECONDS = 0.5
_EXPIRED = (401, 403)


class DownloadCut(CliError):
    """The connection does not come back; what has arrived can be continued later."""


class Stopped(Exception):
    """The download was called off."""


class Tags:
    """The entity tags of unfinished files, by name; kept where the files are."""

    def __init__(self, read: Callable[[str], str | None], write: Callable[[str, str], None]):
        self.read = read
        self.write = write


def no_tags() -> Tags:
    """Remembers tags for this process only."""
    known: dict[str, str] = {}
    return Tags(known.get, known.__setitem__)


class Part:
    """One file on its way. `link()` gives its URL, signed anew when the old one has expired."""

    def __init__(self, source: Source, name: str, link: Callable[[bool], str], path: Path) -> None:
        self._source = source
        self.name = name
        self._link = link
        self._path = path
        self._expected: str | None = None
        self._digest = RunningDigest(path)
        self._size: int | None = None
        self._announced = False

    def fetch(self, bar: Bar, tags: Tags, stop: threading.Event) -> int:
        """Brings the file in and returns its size. Raises `CliError` when it will not come."""
        tries, renew = 0, False
        while True:
            before = self._length()
            try:
                self._attempt(bar, tags, stop, renew)
                return self._checked(bar)
            except (Cut, OSError) as error:
                if isinstance(error, OSError) and not isinstance(error, ConnectionError):
                    raise CliError(f"Failed to write {self._path}", f"Details: {error}") from error
                reason = str(error)
            except Refused as error:
                if error.status not in _EXPIRED and error.status < 500 and error.status != 416:
                    raise self._refused(error) from error
                renew, reason = True, str(error)
                if error.status == 416:
                    self._path.unlink(missing_ok=True)
            tries = 0 if self._length() > before else tries + 1
            if tries >= TRIES_WITHOUT_PROGRESS:
                raise self._cut(reason)
            if stop.wait(FIRST_DELAY_SECONDS * 2**tries):
                raise Stopped

    def _attempt(self, bar: Bar, tags: Tags, stop: threading.Event, renew: bool) -> None:
        have, tag = self._length(), tags.read(self.name)
        answer = self._source.open(self._link(renew), have, tag)
        try:
            if answer.etag is not None:
                tags.write(self.name, answer.etag)
            self._announce(bar, answer)
            if stop.is_set():
                raise Stopped
            with self._path.open("r+b" if self._path.exists() else "wb") as file:
                file.seek(answer.start)
                file.truncate()
                if answer.sha256 is not None:
                    self._digest.continue_at(answer.start)
                self._copy(answer, file, bar, stop)
        finally:
            answer.body.close()
        if answer.size is not None and self._length() < answer.size:
            raise Cut(f"{self._length()} of {answer.size} bytes arrived")

    def _announce(self, bar: Bar, answer: Answer) -> None:
        self._expected, self._size = answer.sha256, answer.size
        if not self._announced:
            self._announced = True
            bar.extend(answer.size or 0)
            bar.resume_at(answer.start)
        elif answer.start < self._length():
            bar.advance(answer.start - self._length())

    def _copy(self, answer: Answer, file: BinaryIO, bar: Bar, stop: threading.Event) -> None:
        buffer = memoryview(bytearray(BUFFER_BYTES))
        while count := self._read(answer, buffer):
            if stop.is_set():
                raise Stopped
            file.write(buffer[:count])
            if answer.sha256 is not None:
                self._digest.add(buffer[:count])
            bar.advance(count)

    def _read(self, answer: Answer, buffer: memoryview) -> int:
        import http.client

        try:
            return answer.body.readinto(buffer)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Cut(str(error) or type(error).__name__) from error

    def _checked(self, bar: Bar) -> int:
        size = self._length()
        if self._size is not None and size != self._size:
            self._path.unlink()
            raise CliError(f"{self.name} has {size} bytes, the server said {self._size}")
        if self._expected is not None and self._digest.hexdigest() != self._expected:
            self._path.unlink()
            raise CliError(
                f"{self.name} was damaged on the way: its SHA-256 is not the server's",
                next_step="Run the same command again.",
            )
        return size

    def _length(self) -> int:
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def _refused(self, error: Refused) -> CliError:
        return CliError(f"Could not download {self.name}", f"Details: {error}")

    def _cut(self, reason: str) -> DownloadCut:
        return DownloadCut(
            f"The download of {self.name} was cut and does not continue",
            f"Details: {reason}",
            "Run the same command again to continue where it stopped.",
        )


class RunningDigest:
    """The SHA-256 of a file that is being written from the front, without reading it again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._hash = hashlib.sha256()
        self._length = 0

    def continue_at(self, start: int) -> None:
        """Prepares for bytes from `start` on; reads what an earlier try left, if it must."""
        if start == self._length:
            return
        self._hash, self._length = hashlib.sha256(), 0
        with self._path.open("rb") as file:
            while self._length < start:
                self.add(memoryview(file.read(min(BUFFER_BYTES, start - self._length))))

    def add(self, block: memoryview) -> None:
        self._hash.update(block)
        self._length += len(block)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def sha256_of(path: Path) -> str:
    """The digest of a file, read in pieces."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(BUFFER_BYTES))
    with path.open("rb") as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def download_file(source: Source, url: str, destination: Path, bar: Bar) -> int:
    """Downloads one file to `destination`, which appears only when it is complete."""
    with tempfile.TemporaryDirectory(dir=destination.parent, prefix=".tinkex-") as folder:
        path = Path(folder, "part")
        part = Part(source, destination.name, lambda renew: url, path)
        size = part.fetch(bar, no_tags(), threading.Event())
        path.touch()
        path.replace(destination)
    return size
