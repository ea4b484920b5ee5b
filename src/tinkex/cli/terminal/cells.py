"""How wide text is on a terminal, and cells filled up to their column's width."""

from __future__ import annotations


def cells_wide(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def padded(cells: list[str], widths: list[int]) -> list[str]:
    """Cells filled up with spaces to their columns' widths."""
    return [cell + " " * (w - cells_wide(cell)) for cell, w in zip(cells, widths, strict=True)]
