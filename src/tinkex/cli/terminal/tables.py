"""How a table looks: boxed and coloured on a terminal, aligned plain text in a pipe.

Knows nothing about what the cells mean. On a terminal the first form that fits is boxed. When none
does, the narrowest is written without a box and its last column, the long one, goes whole to a line
of its own, so that it can be copied; when even that has no room, every cell gets a line.

Our own, not `rich`'s: 5,000 checkpoints are listed in 1.2 s, by the official command in 13
(`benchmarks/cli_listing.py`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import TextIO, TypeAlias

from tinkex.cli.terminal.boxes import drawn
from tinkex.cli.terminal.cells import cells_wide, padded

Form: TypeAlias = "tuple[list[str], list[list[str]]]"

_BOX_PER_COLUMN = 3
_GAP = "  "
_INDENT = "  "


def write_table(stream: TextIO, title: str | None, forms: Iterator[Form]) -> None:
    """Writes a table in the form that suits the stream; a pipe gets the first."""
    cleaned = [(columns, [[printable(c) for c in row] for row in rows]) for columns, rows in forms]
    if not stream.isatty():
        _write_plain(stream, title, *cleaned[0])
        return
    width = _terminal_width(stream)
    if title and not cleaned[0][1]:
        stream.write(f"{title}\n")
    elif not (boxed := _first(cleaned, lambda form: _boxed_width(*form) <= width)):
        _write_unboxed(stream, title, cleaned, width)
    elif not _draws(stream):
        _write_plain(stream, title, *boxed)
    else:
        stream.writelines(drawn(title, *boxed, _widths(*boxed), _wants_colour()))


def _first(forms: list[Form], fits: Callable[[Form], bool]) -> Form | None:
    return next((form for form in forms if fits(form)), None)


def printable(cell: str) -> str:
    """A cell without control characters, so that text from a server cannot drive the terminal."""
    if cell.isprintable():
        return cell
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in cell)


def harmless(text: str, stream: TextIO) -> str:
    """Text with its lines and tabs, but nothing else that could drive a terminal."""
    if not stream.isatty():
        return text
    return "".join(c if c in "\n\t" else printable(c) for c in text)


def _widths(columns: list[str], rows: list[list[str]]) -> list[int]:
    return [max(cells_wide(line[i]) for line in (columns, *rows)) for i in range(len(columns))]


def _boxed_width(columns: list[str], rows: list[list[str]]) -> int:
    return sum(_widths(columns, rows)) + _BOX_PER_COLUMN * len(columns) + 1


def _write_plain(
    stream: TextIO, title: str | None, columns: list[str], rows: list[list[str]]
) -> None:
    if title:
        stream.write(f"{title}\n")
    if title and not rows:
        return
    widths = _widths(columns, rows)
    for line in (columns, *rows):
        stream.write(_GAP.join(padded(line, widths)).rstrip() + "\n")


def _write_unboxed(stream: TextIO, title: str | None, forms: list[Form], width: int) -> None:
    """Facts in columns, the last one whole below them; or one line per cell."""
    if title:
        stream.write(f"{title}\n")
    columns, rows = forms[0]
    if len(columns) == 2:
        names = max(cells_wide(name) for name, _ in rows)
        stream.writelines(
            f"{name.ljust(names)}{_GAP}{value}".rstrip() + "\n" for name, value in rows
        )
    elif facts := _first(forms, lambda form: _facts_width(*form) <= width):
        _write_facts(stream, *facts)
    else:
        blocks = ["\n".join(f"{c}: {v}" for c, v in zip(columns, row, strict=True)) for row in rows]
        stream.write(("\n" if title else "") + "\n\n".join(blocks) + "\n")


def _write_facts(stream: TextIO, columns: list[str], rows: list[list[str]]) -> None:
    bold = "\x1b[1m{}\x1b[0m" if _wants_colour() else "{}"
    widths = _widths(columns, rows)[:-1]
    stream.write(bold.format(_GAP.join(padded(columns[:-1], widths)).rstrip()) + "\n")
    for row in rows:
        last = f"{_INDENT}{row[-1]}\n" if row[-1] else ""
        stream.write(_GAP.join(padded(row[:-1], widths)).rstrip() + f"\n{last}")


def _facts_width(columns: list[str], rows: list[list[str]]) -> int:
    return sum(_widths(columns, rows)[:-1]) + len(_GAP) * (len(columns) - 2)


def _wants_colour() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _draws(stream: TextIO) -> bool:
    """Whether its encoding has what boxes are made of."""
    try:
        "┏━┃".encode(stream.encoding or "utf-8")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def _terminal_width(stream: TextIO) -> int:
    try:
        fallback = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError, AttributeError):
        return shutil.get_terminal_size().columns
    return fallback.columns or shutil.get_terminal_size().columns
