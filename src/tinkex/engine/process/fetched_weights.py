"""Fetched weights: folders that this host lacks, got from elsewhere and kept while they are needed.

What is here already is read where it lies. The rest is fetched once per content, checked against
its hashes, and deleted when its last user lets go or the process ends.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import TypeAlias

from tinkex.engine.errors import OutOfReach
from tinkex.engine.messages import FileLink, WeightsRef

Fetch: TypeAlias = Callable[[WeightsRef, Path], None]
"""Fills an empty folder with what a reference stands for, in any thread. Raises `OutOfReach`."""

_TRIES = 6
_FIRST_PAUSE_S = 0.25
_TIMEOUT_S = 60.0
_BLOCK = 1 << 22


class FetchedWeights:
    """Of one worker. `fetch` is how this host gets folders that have no links of their own."""

    def __init__(self, fetch: Fetch | None = None) -> None:
        self._fetch = fetch or fetch_by_http
        self._needs_links = fetch is None
        self._root: tempfile.TemporaryDirectory[str] | None = None
        self._users: dict[str, set[str]] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def lacks(self, ref: WeightsRef) -> bool:
        """Whether a folder is elsewhere and can be had."""
        can_be_had = bool(ref.files) if self._needs_links else bool(ref.digest)
        return can_be_had and not Path(ref.path).is_dir()

    def bring(self, ref: WeightsRef, user: str) -> WeightsRef:
        """The same folder on this host, until `user` lets go of it. Raises `OutOfReach`."""
        folder = self._place(ref.digest)
        with self._lock:
            self._users.setdefault(ref.digest, set()).add(user)
            lock = self._locks.setdefault(ref.digest, threading.Lock())
        with lock:
            if not folder.is_dir():
                self._fill(ref, folder, user)
        return WeightsRef(str(folder), ref.digest)

    def let_go(self, user: str) -> None:
        """Delete what nobody uses any more."""
        with self._lock:
            for digest in [digest for digest, users in self._users.items() if user in users]:
                self._users[digest].discard(user)
                if not self._users[digest]:
                    del self._users[digest]
                    shutil.rmtree(self._place_of(digest), ignore_errors=True)

    def close(self) -> None:
        if self._root is not None:
            self._root.cleanup()

    def _fill(self, ref: WeightsRef, folder: Path, user: str) -> None:
        draft = folder.with_name(f"{folder.name}.part")
        draft.mkdir()
        try:
            self._fetch(ref, draft)
            draft.rename(folder)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            self.let_go(user)
            raise

    def _place(self, digest: str) -> Path:
        with self._lock:
            if self._root is None:
                self._root = tempfile.TemporaryDirectory(prefix="tinkex-weights-")
            return self._place_of(digest)

    def _place_of(self, digest: str) -> Path:
        assert self._root is not None
        return Path(self._root.name, digest)


def fetch_by_http(ref: WeightsRef, folder: Path) -> None:
    """Get every file from its link, again if need be."""
    for link in ref.files:
        target = folder / link.name
        if not target.resolve().is_relative_to(folder.resolve()):
            raise OutOfReach(f"{link.name!r} is no name of a file in a folder of weights")
        target.parent.mkdir(parents=True, exist_ok=True)
        _persist(link, target)


def _persist(link: FileLink, target: Path) -> None:
    for attempt in range(_TRIES):
        try:
            _get(link, target)
            return
        except (OSError, HTTPException) as error:
            if attempt == _TRIES - 1:
                raise OutOfReach(f"{link.name} could not be fetched: {error}") from None
            time.sleep(random.uniform(0.5, 1.0) * _FIRST_PAUSE_S * 2**attempt)


def _get(link: FileLink, target: Path) -> None:
    """Each block is hashed while the next is on its way."""
    digest, size = hashlib.sha256(), 0
    with (
        urllib.request.urlopen(link.url, timeout=_TIMEOUT_S) as source,
        target.open("wb") as file,
        ThreadPoolExecutor(1) as hashing,
    ):
        while block := source.read(_BLOCK):
            hashing.submit(digest.update, block)
            file.write(block)
            size += len(block)
    if size != link.size or digest.hexdigest() != link.sha256:
        raise OSError(f"{link.name} came with other bytes than it was saved with")
