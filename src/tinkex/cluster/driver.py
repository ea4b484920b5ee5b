"""The process that talks to Ray: `python -m tinkex.cluster.driver FD ADDRESS`, FD a socket.

The streams of engines come over that socket, one file descriptor each. The process ends when the
server closes its end, and the engines with it: Ray ends the actors of a driver that is gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading

from tinkex.cluster.link import Link, Unreachable
from tinkex.cluster.placed_engine import PlacedEngine, refuse
from tinkex.engine.frames import send_frame
from tinkex.engine.messages import Waiting


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    # An interrupt typed at a terminal reaches the whole group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as control:
        os._exit(serve(control, sys.argv[2]))  # threads that wait for Ray would keep it


def serve(control: socket.socket, address: str) -> int:
    """Until the server is gone, or if there is no cluster until somebody heard that."""
    if (stream := _next_stream(control)) is None:
        return 0
    with contextlib.suppress(OSError):
        send_frame(stream, Waiting(f"connecting to the Ray cluster at {address}"))
    try:
        link = Link(address)
    except Unreachable as error:
        with contextlib.suppress(OSError):
            refuse(stream, str(error))
        return 1
    while stream is not None:
        threading.Thread(target=PlacedEngine(stream, link).live, daemon=True).start()
        stream = _next_stream(control)
    link.close()
    return 0


def _next_stream(control: socket.socket) -> socket.socket | None:
    """None when the server is gone."""
    try:
        word, descriptors, _, _ = socket.recv_fds(control, 1, 1)
    except OSError:
        return None
    return socket.socket(fileno=descriptors[0]) if word and descriptors else None


if __name__ == "__main__":
    main()
