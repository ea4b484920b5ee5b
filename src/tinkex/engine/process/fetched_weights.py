"""Fetched weights: folders that this host lacks, fetched by links and kept while they are needed.

What this host has already is read where it is. The rest is fetched once per content, checked
against its hashes, and deleted when its last user drops it or the process ends.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from tinkex.engine.errors import OutOfReach
from tinkex.engine.messages import FileLink, WeightsRef
from tinkex.engine.own_folder import OwnFolder, sweep
from tinkex.engine.process.linked_files import download

_PREFIX = "tinkex-fetched-"

Fetch: TypeAlias = Callable[[WeightsRef, Path], None]
"""Fills an empty folder with what a reference names, in any thread. Raises `OutOfReach`."""


class FetchedWeights:
    """The fetched folders of one worker. `fetch` gets folders that have no links of their own."""

    def __init__(self, fetch: Fetch | None = None) -> None:
        self._fetch = fetch or fetch_by_http
        self._needs_links = fetch is None
        self._root: OwnFolder | None = None
        sweep(_PREFIX)
        self._users: dict[str, set[str]] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def lacks(self, ref: WeightsRef) -> bool:
        """Whether a folder is elsewhere and can be fetched."""
        can_be_had = bool(ref.files) if self._needs_links else bool(ref.digest)
        return can_be_had and not Path(ref.path).is_dir()

    def bring(self, ref: WeightsRef, user: str) -> WeightsRef:
        """The same folder on this host, until `user` releases it. Raises `OutOfReach`."""
        folder = self._place(ref.digest)
        with self._lock:
            self._users.setdefault(ref.digest, set()).add(user)
            lock = self._locks.setdefault(ref.digest, threading.Lock())
        with lock:
            if not folder.is_dir():
                self._fill(ref, folder, user)
        return WeightsRef(str(folder), ref.digest)

    def let_go(self, user: str) -> None:
        """Delete what no user holds any more."""
        with self._lock:
            for digest in [digest for digest, users in self._users.items() if user in users]:
                self._users[digest].discard(user)
                if not self._users[digest]:
                    del self._users[digest]
                    shutil.rmtree(self._place_of(digest), ignore_errors=True)

    def close(self) -> None:
        if self._root is not None:
            self._root.close()

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
                self._root = OwnFolder(_PREFIX)
            return self._place_of(digest)

    def _place_of(self, digest: str) -> Path:
        assert self._root is not None
        return self._root.path / digest


def fetch_by_http(ref: WeightsRef, folder: Path) -> None:
    """Fetch every file from its link, with retries. Raises `OutOfReach`."""
    for link in ref.files:
        target = folder / link.name
        if not target.resolve().is_relative_to(folder.resolve()):
            raise OutOfReach(f"{link.name!r} is no name of a file in a folder of weights")
        target.parent.mkdir(parents=True, exist_ok=True)
        _get(link, target)


def _get(link: FileLink, target: Path) -> None:
    try:
        digest = download(link.url, link.size, target)
    except OSError as error:
        raise OutOfReach(f"{link.name} could not be fetched: {error}") from None
    if digest != link.sha256:
        raise OutOfReach(f"{link.name} came with other bytes than it was saved with")
