"""Writes and reads an engine's stream on the event loop itself, where that needs no waiting.

Waking a thread to write a few hundred bytes, and waking the loop again, takes longer than the
write. Messages that are large, or incomplete, are left to threads that may wait.
"""

from __future__ import annotations

import socket
import threading

from tinkex.engine.frames import Closed, send_now, take_frame
from tinkex.engine.messages import Command, Event, Failed

STARTUP_OP = ""
"""The `op` of the `Failed` a child sends when it cannot start at all."""


class AtOnce:
    """Of a stream whose commands are sent, one at a time, by whoever has `_sending`."""

    _stream: socket.socket
    _sending: threading.Lock

    def fileno(self) -> int:
        return self._stream.fileno()

    def send_at_once(self, command: Command) -> bool:
        """Hand over a command if it is small and there is room for it; False: nothing is done."""
        if not self._sending.acquire(blocking=False):
            return False
        try:
            return send_now(self._stream, command)
        except (Closed, OSError):
            return False  # whoever may wait finds out how it ended
        finally:
            self._sending.release()

    def receive_at_once(self) -> Event | None:
        """The next event if it is small and all there; None: see whoever may wait."""
        try:
            event: Event | None = take_frame(self._stream, _is_event)
        except (Closed, OSError):
            return None
        return event


def _is_event(value: object) -> bool:
    """Not why there will be none."""
    return not (isinstance(value, Failed) and value.op == STARTUP_OP)
