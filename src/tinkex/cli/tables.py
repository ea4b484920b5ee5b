"""How a table looks: boxed and coloured on a terminal, aligned plain text in a pipe.

Knows nothing about what the cells mean. A table that fits is drawn by `boxes`, at once however long
it is; one that must be folded is left to the rich library, which is imported only then.
"""

from __future__ import annotations

import os
import shutil
from typing import TextIO

from tinkex.cli.boxes import drawn

_LEAST_COLUMN = 6
_BOX_PER_COLUMN = 3


def write_table(
    stream: TextIO, title: str | None, columns: list[str], rows: list[list[str]]
) -> None:
    """Writes a table in the form that suits the stream."""
    rows = [[_printable(cell) for cell in row] for row in rows]
    if not stream.isatty():
        _write_plain(stream, title, columns, rows)
    elif _needed_width(columns, rows) > _terminal_width(stream):
        _write_stacked(stream, title, columns, rows)
    else:
        widths = [max(len(line[i]) for line in (columns, *rows)) for i in range(len(columns))]
        plain = all(cell.isascii() for row in rows for cell in row)
        whole = sum(widths) + _BOX_PER_COLUMN * len(columns) + 1
        if plain and rows and whole <= _terminal_width(stream):
            stream.writelines(drawn(title, columns, rows, widths, _wants_colour()))
        else:
            _write_folded(stream, title, columns, rows)


def _printable(cell: str) -> str:
    """A cell without control characters, so that text from a server cannot drive the terminal."""
    if cell.isprintable():
        return cell
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in cell)


def harmless(text: str, stream: TextIO) -> str:
    """Text with its lines and tabs, but nothing else that could drive a terminal."""
    if not stream.isatty():
        return text
    return "".join(c if c in "\n\t" else _printable(c) for c in text)


def _write_plain(
    stream: TextIO, title: str | None, columns: list[str], rows: list[list[str]]
) -> None:
    if title:
        stream.write(f"{title}\n")
    if title and not rows:
        return
    lines = [columns, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        stream.write("  ".join(cells).rstrip() + "\n")


def _write_stacked(
    stream: TextIO, title: str | None, columns: list[str], rows: list[list[str]]
) -> None:
    """One line per cell: what is left when the terminal is too narrow for a table."""
    blocks = ["\n".join(f"{c}: {v}" for c, v in zip(columns, row, strict=True)) for row in rows]
    stream.write("\n\n".join([title, *blocks] if title else blocks) + "\n")


def _write_folded(
    stream: TextIO, title: str | None, columns: list[str], rows: list[list[str]]
) -> None:
    """A boxed table that folds long cells and knows how wide every character is."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title) if title else None, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(
            column, style="" if index else "bright_cyan", no_wrap=not index, overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(file=stream, emoji=False, highlight=False, width=_terminal_width(stream))
    console.print(table if rows or not title else Text(title))


def _wants_colour() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _needed_width(columns: list[str], rows: list[list[str]]) -> int:
    """The first column whole, the others folded as far as is still readable."""
    first = max([len(columns[0]), *(len(row[0]) for row in rows)])
    rest = (
        min(_LEAST_COLUMN, max([len(columns[i]), *(len(row[i]) for row in rows)]))
        for i in range(1, len(columns))
    )
    return first + sum(rest) + _BOX_PER_COLUMN * len(columns) + 1


def _terminal_width(stream: TextIO) -> int:
    try:
        fallback = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError, AttributeError):
        return shutil.get_terminal_size().columns
    return fallback.columns or shutil.get_terminal_size().columns
