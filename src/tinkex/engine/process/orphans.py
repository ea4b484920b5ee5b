"""Orphans: ends a process whose parent died while it was still loading.

Once an engine reads its stream it notices the parent's end there. This covers the time before, in
which libraries are imported and weights read.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LOOK_EVERY_MS = 200
_HUNG_UP = getattr(select, "POLLRDHUP", 0)
"""Beside what is always told; macOS has only that."""


@contextmanager
def ending_with_parent(stream: socket.socket) -> Iterator[None]:
    """End this process if the other side of `stream` is closed within the block."""
    over = threading.Event()
    threading.Thread(target=_watch, args=(stream.fileno(), over), daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _watch(stream: int, over: threading.Event) -> None:
    poll = select.poll()
    poll.register(stream, _HUNG_UP)
    while not over.is_set():
        if poll.poll(_LOOK_EVERY_MS) and not over.is_set():
            os._exit(0)
