"""Waiting that `q` ends, as it ends other programs that fill a terminal."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

Wait = Callable[[float], object]


@contextmanager
def ended_by_q(stdin: TextIO, wait: Wait) -> Iterator[Wait]:
    """A wait that means Ctrl-C when a person presses q; `wait` itself where nobody can press one.
    Until the block ends keys are not shown."""
    if stdin is not sys.stdin or not _is_in_the_foreground(stdin):
        yield wait
        return
    import termios
    import tty

    descriptor = stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield lambda seconds: _wait_for_q(descriptor, seconds, wait)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _is_in_the_foreground(stdin: TextIO) -> bool:
    """A terminal whose modes are ours: changing them from the background would stop the process."""
    return os.name == "posix" and stdin.isatty() and os.tcgetpgrp(stdin.fileno()) == os.getpgrp()


def _wait_for_q(descriptor: int, seconds: float, wait: Wait) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if not select.select([descriptor], [], [], left)[0]:
            return
        keys = os.read(descriptor, 64)
        if b"q" in keys.lower():
            raise KeyboardInterrupt
        if not keys:  # the terminal has gone
            wait(left)
