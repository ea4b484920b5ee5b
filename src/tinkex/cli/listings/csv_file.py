"""Writes rows as CSV to a file or to standard output, whole or not at all."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tinkex.cli.errors import CliError
from tinkex.cli.line.context import CommandContext
from tinkex.cli.whole_file import write_whole

STDOUT = "-"


def write_csv(
    context: CommandContext, path: str, columns: list[str], rows: Iterable[list[Any]]
) -> None:
    """Writes the rows, nothing for None, and says how many and where on stderr."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    cells = [["" if cell is None else cell for cell in row] for row in rows]
    writer.writerows(cells)
    if path == STDOUT:
        context.streams.out.write(text.getvalue())
    else:
        _write_file(Path(path), text.getvalue())
    where = "stdout" if path == STDOUT else path
    context.note(f"Wrote {len(cells)} row{'' if len(cells) == 1 else 's'} to {where}")


def _write_file(path: Path, text: str) -> None:
    try:
        write_whole(path, text)
    except OSError as error:
        raise CliError(f"Failed to write {path}", f"Details: {error}") from error
