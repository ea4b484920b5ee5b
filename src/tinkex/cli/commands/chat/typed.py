"""What a person types: lines with history and editing on a terminal, plain lines from a pipe."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from tinkex.cli.errors import not_text
from tinkex.cli.line.context import CommandContext

PROMPT = "> "
BLOCK = '"""'
_KEPT_LINES = 1000


class Typed:
    """Messages, one a line; several lines between two lines of three quotes are one. None is a line
    given up with Ctrl-C."""

    def __init__(self, context: CommandContext) -> None:
        self._context = context
        self.is_person = context.stdin.isatty() and not context.is_json
        self._edited = self.is_person and context.stdin is sys.stdin and sys.stdout.isatty()
        self._readline = _readline() if self._edited else None

    def __iter__(self) -> Iterator[str | None]:
        with self._history():
            while True:
                try:
                    line = self._line(PROMPT)
                    if line is None:
                        return
                    yield line if line.strip() != BLOCK else self._block()
                except KeyboardInterrupt:
                    yield None

    def _block(self) -> str:
        lines: list[str] = []
        while (line := self._line("")) is not None and line.strip() != BLOCK:
            lines.append(line)
        return "\n".join(lines)

    def _line(self, prompt: str) -> str | None:
        """The next line without its end; None at the end of input."""
        with self._context.deadline.paused():
            if self._edited:
                try:
                    return input(prompt)
                except EOFError:
                    return None
            if self.is_person:
                self._context.streams.err.write(prompt)
                self._context.streams.err.flush()
            try:
                line = self._context.stdin.readline()
            except UnicodeDecodeError as error:
                raise not_text() from error
        return line.rstrip("\r\n") if line else None

    @contextlib.contextmanager
    def _history(self) -> Iterator[None]:
        """Earlier lines at the arrow keys, and these for the next time; only the user's to read."""
        if self._readline is None:
            yield
            return
        path = self._context.deps.cache_folder() / "chat-history"
        with contextlib.suppress(OSError):
            self._readline.read_history_file(path)
        try:
            yield
        finally:
            _keep(self._readline, path)


def _keep(readline: ModuleType, path: Path) -> None:
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        os.chmod(path, 0o600)
        readline.set_history_length(_KEPT_LINES)
        readline.write_history_file(path)


def _readline() -> ModuleType | None:
    try:
        import readline
    except ImportError:  # not on every system
        return None
    return readline
