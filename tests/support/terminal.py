"""Runs a program on a pseudo-terminal, as a person would: types, waits for text, interrupts."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self


class TerminalSession:
    """A program with a terminal of its own. `text` is all it has written."""

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], columns: int = 100
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=dict(environ),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self.text = ""

    def type(self, keys: str) -> None:
        """Presses keys; "\\x03" is Ctrl-C."""
        os.write(self._master, keys.encode())

    def wait_for(self, words: str, seconds: float = 30.0) -> None:
        """Reads until `words` have appeared."""
        self._read_until(lambda: words in self.text, seconds)
        assert words in self.text, self.text

    def finish(self, seconds: float = 30.0) -> int:
        """Reads to the end; the exit status."""
        self._read_until(lambda: False, seconds)
        return self.process.wait(seconds)

    def _read_until(self, enough: object, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not enough() and time.monotonic() < end:
            ready, _, _ = select.select([self._master], [], [], 0.1)
            if not ready:
                if self.process.poll() is not None:
                    return
                continue
            try:
                data = os.read(self._master, 65536)
            except OSError:  # the other end is closed
                return
            if not data:
                return
            self.text += data.decode("utf-8", errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)
