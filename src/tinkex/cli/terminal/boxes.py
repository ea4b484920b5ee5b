"""Draws a table in a box, when every cell fits as it is. Text in, lines out; knows no terminal."""

from __future__ import annotations

from collections.abc import Iterator

from tinkex.cli.terminal.cells import padded

_BOLD = "\x1b[1m{}\x1b[0m"
_FIRST = "\x1b[96m{}\x1b[0m"


def drawn(
    title: str | None, columns: list[str], rows: list[list[str]], widths: list[int], colour: bool
) -> Iterator[str]:
    """The lines of the table. `colour` sets off the headings and the first column."""
    bold, first = (_BOLD, _FIRST) if colour else ("{}", "{}")
    if title:
        whole = sum(widths) + 3 * len(widths) + 1
        yield f"{title.center(whole).rstrip()}\n"
    yield _rule("┏┳┓", "━", widths)
    yield _line("┃", [bold.format(cell) for cell in padded(columns, widths)])
    yield _rule("┡╇┩", "━", widths)
    for row in rows:
        cells = padded(row, widths)
        yield _line("│", [first.format(cells[0]), *cells[1:]])
    yield _rule("└┴┘", "─", widths)


def _line(edge: str, cells: list[str]) -> str:
    return f"{edge} {f' {edge} '.join(cells)} {edge}\n"


def _rule(corners: str, stroke: str, widths: list[int]) -> str:
    between = corners[1].join(stroke * (width + 2) for width in widths)
    return f"{corners[0]}{between}{corners[2]}\n"
