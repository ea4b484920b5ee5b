"""A screen that is drawn again and again until Ctrl-C, and leaves the terminal as it was.

Each picture replaces the one before without flicker: the cursor goes home and every line clears its
own rest. Where nobody looks at a terminal there is one picture and no control character.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from tinkex.cli.terminal.cells import cells_wide
from tinkex.cli.terminal.tables import printable

_ENTER = "\x1b[?1049h\x1b[?25l"
_LEAVE = "\x1b[?25h\x1b[?1049l"

Wait = Callable[[float], object]
"""Waits so many seconds."""


class Screen:
    """Where pictures are drawn: a terminal, or a stream that gets one."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.is_live = stream.isatty() and os.environ.get("TERM") != "dumb"

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        found = shutil.get_terminal_size((80, 24))
        return found.columns, found.lines

    @property
    def is_plain(self) -> bool:
        """Whether it can show nothing but ASCII."""
        encoding = (getattr(self._stream, "encoding", None) or "utf-8").lower()
        return not encoding.replace("-", "").startswith("utf") or os.environ.get("TERM") == "dumb"

    @contextmanager
    def shown(self) -> Iterator[None]:
        """A screen of its own for as long as it lasts."""
        if not self.is_live:
            yield
            return
        self._stream.write(_ENTER)
        try:
            yield
        finally:
            self._stream.write(_LEAVE)
            self._stream.flush()

    def draw(self, lines: Sequence[str]) -> None:
        columns, rows = self.size
        cut = [clipped(printable(line), columns) for line in lines]
        if self.is_live:
            text = "".join(f"{line}\x1b[K\r\n" for line in cut[: rows - 1])
            self._stream.write(f"\x1b[H{text}\x1b[J")
        else:
            self._stream.writelines(f"{line}\n" for line in cut)
        self._stream.flush()


def clipped(text: str, width: int) -> str:
    """A line cut to a width of the terminal."""
    if cells_wide(text) <= width:
        return text
    while text and cells_wide(text) > width - 1:
        text = text[:-1]
    return f"{text}…"


def watch(
    screen: Screen,
    picture: Callable[[], tuple[Sequence[str], bool]],
    every_s: float,
    *,
    once: bool,
    wait: Wait,
) -> Sequence[str]:
    """Draw what `picture` gives until it says that it was the last, or Ctrl-C; the last picture.

    A single picture is drawn where the cursor is: on a screen of its own it would go with it.
    """
    lines: Sequence[str] = ()
    screen.is_live = screen.is_live and not once
    with screen.shown():
        try:
            while True:
                lines, over = picture()
                screen.draw(lines)
                if once or over or not screen.is_live:
                    break
                wait(every_s)
        except KeyboardInterrupt:
            pass
    return lines
