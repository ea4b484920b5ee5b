"""The folder a server owns: where things lie in it, and the lock that says whose it is.

tinkex.db     the store            payloads/   bodies and results too large for it
weights/      checkpoints          snapshots/  from which lost runs are rebuilt
pins/         what loads read      exports/    what was asked for as one file
objects.json  the object store that has all of these, if one does; then
cache/        has copies of some, and may be deleted while no server runs
lock          held while a server lives; names its process, its address and its socket
socket        where that server answers its own user's other processes
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import weakref
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tinkex.server.storage.home_socket import HomeSocket


def default_home(environ: Mapping[str, str]) -> Path:
    """The home that is used when none is named: `$TINKEX_HOME`, else `~/.tinkex`."""
    return Path(environ.get("TINKEX_HOME") or Path.home() / ".tinkex")


@dataclass(frozen=True, slots=True)
class Holder:
    """Who lives in a home. Without `address` it is a script, not a `tinkex serve`; `socket` is
    where its user's processes reach it, empty if nowhere."""

    pid: int
    address: str = ""
    socket: str = ""

    def __str__(self) -> str:
        if self.address:
            return f"process {self.pid}, a server at {self.address} (use that)"
        return (
            f'process {self.pid}, a script with base_url="local" (other scripts and commands with '
            "--local join it, tinkex serve can have it when it has ended)"
        )


class HomeTaken(Exception):
    """Another server lives in this home. The message says which, and what to do.

    `holder` is None in the moment before it has written its name.
    """

    def __init__(self, root: Path, holder: Holder | None) -> None:
        who = holder or "another process, which is just starting"
        super().__init__(f"{root} is in use by {who}, or choose another home (TINKEX_HOME, --home)")
        self.root = root
        self.holder = holder


class Home:
    """An existing folder, locked for this process until `release`."""

    def __init__(self, root: Path, address: str = "") -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        before = holder_of(root)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise HomeTaken(root, holder_of(root)) from None
        self.socket = HomeSocket(root, None if before is None else before.socket)
        self.name(address)
        _held.add(self)

    def name(self, address: str) -> None:
        """Tell who comes later where this server answers."""
        holder = Holder(os.getpid(), address, self.socket.path)
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, json.dumps(asdict(holder)).encode(), 0)

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

    @property
    def exports(self) -> Path:
        return self.root / "exports"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    def release(self) -> None:
        """Give the home back. The socket goes first: nobody may come once nobody answers."""
        self.socket.remove()
        self._close()

    def _close(self) -> None:
        _held.discard(self)
        os.close(self._lock)

    def forget(self) -> None:
        """In a forked child: the home is the parent's. A copy of its lock would outlive it."""
        self.socket.close()
        self._close()


_held: weakref.WeakSet[Home] = weakref.WeakSet()


def _forget_all() -> None:
    for home in list(_held):
        home.forget()


os.register_at_fork(after_in_child=_forget_all)


def holder_of(root: Path) -> Holder | None:
    """Who wrote its name last; it may have gone since. Servers before 0.2 had no socket."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads((root / "lock").read_text())
        address = str(found.get("address", ""))
        embedded = address.endswith(":0")
        return Holder(int(found["pid"]), "" if embedded else address, str(found.get("socket", "")))
    return None
