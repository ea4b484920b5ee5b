"""Word wrap: lines are broken between words, also of text that comes piece by piece."""

from __future__ import annotations

import re
import shutil
from typing import TextIO

from tinkex.cli.terminal.cells import cells_wide

_PARTS = re.compile(r"\n|[^\S\n]+|\S+")


def wrapped(line: str, stream: TextIO) -> str:
    """A line as its stream shall get it: in a terminal's width, and whole in a pipe or a file."""
    if not stream.isatty():
        return line
    wrap = WordWrap(shutil.get_terminal_size((80, 24)).columns)
    return wrap.add(line) + wrap.end()


class WordWrap:
    """Text in, the same with line breaks out; a word waits until it is complete. Lines that begin
    with space, code most likely, are left as they are."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._column = 0
        self._word = ""
        self._space = ""
        self._as_it_is = False

    def add(self, text: str) -> str:
        """What can be written now."""
        said = []
        for part in _PARTS.findall(text):
            if not part.isspace():
                self._word += part
                if cells_wide(self._word) >= self._width:
                    said.append(self._flushed())
                continue
            said.append(self._flushed())
            if part == "\n":
                said.append("\n")
                self._column, self._space, self._as_it_is = 0, "", False
            else:
                self._as_it_is |= self._column == 0
                self._space += part
        return "".join(said)

    def end(self) -> str:
        """The rest."""
        return self._flushed()

    def _flushed(self) -> str:
        """The word that waited, after its space or on a new line."""
        if not self._word:
            return ""
        space, word = self._space, self._word
        self._space = self._word = ""
        needed = cells_wide(space) + cells_wide(word)
        if self._column and not self._as_it_is and self._column + needed > self._width:
            space, self._column, needed = "\n", 0, cells_wide(word)
        self._column += needed
        return space + word
