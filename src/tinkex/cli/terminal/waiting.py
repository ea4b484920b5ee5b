"""A sign on a terminal that something is being waited for, removed as soon as it arrives."""

from __future__ import annotations

import threading
from typing import TextIO

AFTER_S = 1.5
_SIGN = "..."


class Waiting:
    """Shows its sign when nothing has come for a moment; nothing where there is no stream."""

    def __init__(self, stream: TextIO | None, after_s: float = AFTER_S) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._is_over = stream is None
        self._is_shown = False
        self._timer = threading.Timer(after_s, self._show)
        self._timer.daemon = True
        if stream is not None:
            self._timer.start()

    def over(self) -> None:
        """What was waited for has come, or is not waited for any more."""
        self._timer.cancel()
        with self._lock:
            self._is_over = True
            if self._is_shown and self._stream is not None:
                self._is_shown = False
                self._stream.write("\r\x1b[K")

    def _show(self) -> None:
        with self._lock:
            if not self._is_over and self._stream is not None:
                self._is_shown = True
                self._stream.write(_SIGN)
                self._stream.flush()
