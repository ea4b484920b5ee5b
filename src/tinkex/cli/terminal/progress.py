"""Progress bars: percent, position, rate and time left, on one line of a terminal.

A bar without a stream does nothing, so callers need not ask whether anyone is looking. Safe to
advance from several threads. Knows nothing of what is being counted.
"""

from __future__ import annotations

import shutil
import threading
import time
from typing import Self, TextIO

from tinkex.cli.terminal.formats import format_size

_REDRAW_SECONDS = 0.1
_LEAST_BAR = 8
_MOST_BAR = 40


class Bar:
    """A progress bar used as a context manager. `unit` "bytes" shows sizes and a rate."""

    def __init__(self, stream: TextIO | None, label: str, total: int | None, unit: str) -> None:
        self._stream = stream
        self._label = label
        self._unit = unit
        self._lock = threading.Lock()
        self._total = total
        self._done = 0
        self._skipped = 0
        self._started = time.monotonic()
        self._drawn = 0.0

    def __enter__(self) -> Self:
        self._draw(force=True)
        return self

    def __exit__(self, *exception: object) -> None:
        self._draw(force=True)
        if self._stream is not None:
            self._stream.write("\n")
            self._stream.flush()

    def advance(self, amount: int) -> None:
        """Counts `amount` more as done."""
        with self._lock:
            self._done += amount
        self._draw()

    def resume_at(self, amount: int) -> None:
        """Counts `amount` as done before now, so that it does not enter the rate."""
        with self._lock:
            self._done += amount
            self._skipped += amount
        self._draw()

    def extend(self, amount: int) -> None:
        """Raises the total, when it becomes known piece by piece."""
        with self._lock:
            self._total = (self._total or 0) + amount
        self._draw()

    def relabel(self, label: str) -> None:
        """Shows another label."""
        self._label = label
        self._draw(force=True)

    def _draw(self, force: bool = False) -> None:
        if self._stream is None:
            return
        now = time.monotonic()
        with self._lock:
            if not force and now - self._drawn < _REDRAW_SECONDS:
                return
            self._drawn = now
            width = shutil.get_terminal_size().columns - 1
            self._stream.write("\r" + self.line(width, now - self._started) + "\x1b[K")
            self._stream.flush()

    def line(self, width: int, elapsed: float) -> str:
        """What the bar looks like `elapsed` seconds after its start, in `width` columns."""
        facts = self._facts(elapsed)
        room = width - len(self._label) - len(facts) - len("  []  ")
        if self._total and room >= _LEAST_BAR:
            size = min(room, _MOST_BAR)
            filled = min(size, size * self._done // self._total)
            return f"{self._label}  [{'#' * filled}{'-' * (size - filled)}]  {facts}"[:width]
        return f"{self._label}  {facts}"[:width]

    def _facts(self, elapsed: float) -> str:
        parts = []
        if self._total:
            parts.append(f"{min(100, 100 * self._done // self._total)}%")
        parts.append(self._position())
        rate = (self._done - self._skipped) / elapsed if elapsed > 0 else 0.0
        if self._unit == "bytes" and rate:
            parts.append(f"{format_size(rate)}/s")
        if self._total and rate and self._done < self._total:
            parts.append(f"ETA {_clock((self._total - self._done) / rate)}")
        return "  ".join(parts)

    def _position(self) -> str:
        show = format_size if self._unit == "bytes" else str
        of_total = f"/{show(self._total)}" if self._total else ""
        return f"{show(self._done)}{of_total}" + ("" if self._unit == "bytes" else f" {self._unit}")


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"
