"""Folders that belong to one process; the next process deletes what a killed one left behind.

Ray ends its actors without a warning, and so does `kill -9`, so they cannot clean up. A folder is
locked as long as its process lives: one that can be locked belongs to nobody any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType


class OwnFolder:
    """An empty folder at `path`, among those of its prefix; deleted by `close`, or with its
    process's end by whoever comes next."""

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        parent = parent or Path(tempfile.gettempdir())
        sweep(prefix, parent)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            lock = _locked(self.path)
            if lock is not None and self.path.is_dir():
                break  # else somebody who swept was faster
        self._lock: int | None = lock

    def close(self) -> None:
        """Safe to call again."""
        lock, self._lock = self._lock, None
        if lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(lock)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def sweep(prefix: str, parent: Path | None = None) -> None:
    """Delete the folders with a prefix whose processes are gone."""
    for left in (parent or Path(tempfile.gettempdir())).glob(f"{prefix}*"):
        lock = _locked(left)
        if lock is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(lock)


def _locked(folder: Path) -> int | None:
    """An open file that keeps it locked; None where another has it, or it is not ours at all."""
    with contextlib.suppress(OSError):
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
        else:
            return lock
    return None
