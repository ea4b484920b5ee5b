"""The folder a server owns: where things lie in it, and the lock that says whose it is.

tinkex.db     the store, unless    payloads/   bodies and results too large for it
weights/      checkpoints          snapshots/  from which lost runs are rebuilt
pins/         what loads read      exports/    what was asked for as one file
models.json   where each model was served from
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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from tinkex.server.storage import home_rows
from tinkex.server.storage.home_socket import HomeSocket

if TYPE_CHECKING:
    from tinkex.server.storage.database import Store
    from tinkex.server.storage.database.transactions import Transaction

T = TypeVar("T")


def default_home(environ: Mapping[str, str]) -> Path:
    """The home that is used when none is named: `$TINKEX_HOME`, else `~/.tinkex`."""
    return Path(environ.get("TINKEX_HOME") or Path.home() / ".tinkex")


class Holder(NamedTuple):
    """Who serves a home. Without `address` it is a script, not a `tinkex serve`; `socket` is where
    its user's processes reach it, empty if nowhere."""

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
    """Another server has this home. The message says which, and what to do. `holder` is None in the
    moment before it has written its name."""

    def __init__(self, root: Path, holder: Holder | None) -> None:
        who = holder or "another process, which is just starting"
        super().__init__(f"{root} is in use by {who}, or choose another home (TINKEX_HOME, --home)")
        self.root = root
        self.holder = holder


_SEGMENTS_OF_A_LEASE = 1_000_000


class HomeLease(Protocol):
    """The right to a home whose rows are in a separate database: see `database.postgres`."""

    number: int
    home: str
    is_new: bool

    def open_store(self) -> Store: ...

    def read(self, work: Callable[[Transaction], T]) -> T: ...

    def name(self, holder: str) -> None: ...

    def give_back(self) -> None: ...


class Home:
    """An existing folder, locked for this process until `release`. A process with a `lease` has the
    right to it, whoever holds the lock."""

    def __init__(self, root: Path, address: str = "", lease: HomeLease | None = None) -> None:
        self.root = root
        self.lease = lease
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        before = holder_of(root)
        if not _locked(self._lock):
            os.close(self._lock)
            if lease is None:
                raise HomeTaken(root, holder_of(root))
            self._lock = _new_lock(root)
        try:
            home_rows.check(root, lease)
        except BaseException:
            os.close(self._lock)
            raise
        self.socket = HomeSocket(root, None if before is None else before.socket)
        self.name(address)
        _held.add(self)

    def name(self, address: str) -> None:
        """Record where this server answers, for processes that come later."""
        holder = Holder(os.getpid(), address, self.socket.path)
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, json.dumps(holder._asdict()).encode(), 0)
        if self.lease is not None:
            self.lease.name(address)

    @property
    def database(self) -> Path:
        return self.root / "tinkex.db"

    @property
    def payloads(self) -> Path:
        return self.root / "payloads"

    @property
    def first_segment(self) -> int:
        """The first number of this server's payload segments, so that a server that hung and lost
        the home never writes into those of the next."""
        return 1 if self.lease is None else self.lease.number * _SEGMENTS_OF_A_LEASE

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
        if self.lease is not None:
            self.lease.give_back()

    def _close(self) -> None:
        _held.discard(self)
        os.close(self._lock)

    def forget(self) -> None:
        """In a forked child: the home is the parent's. A copy of its lock would outlive it."""
        self.socket.close()
        self._close()


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _new_lock(root: Path) -> int:
    """A new lock in place of one whose holder hangs and has lost its right to the home."""
    (root / "lock").unlink(missing_ok=True)
    descriptor = os.open(root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


_held: weakref.WeakSet[Home] = weakref.WeakSet()


def _forget_all() -> None:
    for home in list(_held):
        home.forget()


os.register_at_fork(after_in_child=_forget_all)


def holder_of(root: Path) -> Holder | None:
    """The process that wrote its name last; it may have exited since. Servers before 0.2 had no
    socket."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads((root / "lock").read_text())
        address = str(found.get("address", ""))
        embedded = address.endswith(":0")
        return Holder(int(found["pid"]), "" if embedded else address, str(found.get("socket", "")))
    return None
