"""The socket in a home: where a server answers other processes of the user who owns its files.

Made listening before anyone can learn of it, readable by its owner alone. A path too long for a
socket's name, or a file system without sockets, moves it to a private folder of the system's own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from pathlib import Path

_LONGEST = 100
"""Bytes of a socket's path: systems end at 104 or 108."""

_ELSEWHERE = "tinkex-home-"
_BACKLOG = 128


class HomeSocket:
    """Listens from the start. `path` is empty where no socket could be made at all."""

    def __init__(self, root: Path, stale: str | None) -> None:
        """`stale` is what the last holder of the home listened on; it is gone, we hold the lock."""
        _remove(stale)
        self.listener: socket.socket | None = None
        self.path = ""
        try:
            self._listen(root / "socket")
        except OSError:
            with contextlib.suppress(OSError):
                self._listen(Path(tempfile.mkdtemp(prefix=_ELSEWHERE)) / "socket")

    def _listen(self, path: Path) -> None:
        name = str(path.absolute())
        if len(os.fsencode(name)) > _LONGEST:
            raise OSError("the path is too long for a socket")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            path.unlink(missing_ok=True)
            listener.bind(name)
            os.chmod(name, 0o600)  # nobody can connect before it listens
            listener.listen(_BACKLOG)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
        self.listener, self.path = listener, name

    def close(self) -> None:
        """Stop listening."""
        if self.listener is not None:
            self.listener.close()
            self.listener = None

    def remove(self) -> None:
        """Stop listening and take the name away."""
        self.close()
        _remove(self.path)


def _remove(path: str | None) -> None:
    """A socket's name, and the folder that was made for it alone."""
    if not path or Path(path).name != "socket":
        return
    with contextlib.suppress(OSError):
        os.unlink(path)
    folder = Path(path).parent
    if folder.name.startswith(_ELSEWHERE):
        shutil.rmtree(folder, ignore_errors=True)
