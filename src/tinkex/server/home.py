"""The folder a server owns: where things lie in it, and the lock that says whose it is.

tinkex.db     the store            payloads/   bodies and results too large for it
weights/      checkpoints          snapshots/  from which lost runs are rebuilt
pins/         what loads read      lock        held while a server lives; names its process
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path


def default_home(environ: Mapping[str, str]) -> Path:
    """The home that is used when none is named: `$TINKEX_HOME`, else `~/.tinkex`."""
    return Path(environ.get("TINKEX_HOME") or Path.home() / ".tinkex")


class HomeTaken(Exception):
    """Another server lives in this home. The message says which."""


class Home:
    """An existing folder, locked for this process until `release`."""

    def __init__(self, root: Path, address: str = "") -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = _holder(root)
            os.close(self._lock)
            raise HomeTaken(f"{root} is in use by {holder}") from None
        text = json.dumps({"pid": os.getpid(), "address": address})
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, text.encode(), 0)

    @property
    def database(self) -> Path:
        return self.root / "tinkex.db"

    @property
    def payloads(self) -> Path:
        return self.root / "payloads"

    @property
    def weights(self) -> Path:
        return self.root / "weights"

    @property
    def snapshots(self) -> Path:
        return self.root / "snapshots"

    @property
    def pins(self) -> Path:
        return self.root / "pins"

    def release(self) -> None:
        os.close(self._lock)


def address_of(root: Path) -> str | None:
    """Where the server of another process that lives in this home answers.

    None if there is none, or if it has no socket, as a server embedded in a process has not.
    """
    try:
        with (root / "lock").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                holder = json.load(lock)
                address = str(holder["address"])
                here = holder["pid"] == os.getpid()
                return None if here or not address or address.endswith(":0") else address
    except (OSError, ValueError, KeyError):
        return None
    return None


def _holder(root: Path) -> str:
    try:
        holder = json.loads((root / "lock").read_text())
        address, process = str(holder.get("address", "")), f"process {int(holder['pid'])}"
        if not address or address.endswith(":0"):
            return f"{process}, without a port; several processes share a home through tinkex serve"
        return f"{process} at {address}"
    except (OSError, ValueError, KeyError):
        return "another process"
