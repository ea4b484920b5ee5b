"""The forms a command's result takes: a dictionary for JSON, a table or lines for people.

One subclass per result lives beside the command that prints it. This module decides which form is
written; how a table looks is `tables`' business.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, TextIO

from tinkex.cli.terminal.tables import harmless, write_table


class Output(ABC):
    """A result that can be printed. `exit_code` is what printing it means for the process."""

    exit_code = 0

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The result for programs: the keys and values that `--format json` prints."""

    @abstractmethod
    def write_for_people(self, stream: TextIO) -> None:
        """Writes the result for a person."""

    def write(self, stream: TextIO, form: str) -> None:
        """Writes the result as `table` or `json`."""
        if form == "json":
            write_json(self.to_dict(), stream)
        else:
            self.write_for_people(stream)


class TableOutput(Output):
    """A result that people read as a table."""

    @abstractmethod
    def columns(self) -> list[str]:
        """The headings."""

    @abstractmethod
    def rows(self) -> list[list[str]]:
        """The cells, one list per row, as long as `columns()`."""

    def title(self) -> str | None:
        """What stands above the table."""
        return None

    def forms(self) -> Iterator[tuple[list[str], list[list[str]]]]:
        """Columns and rows, in ever narrower forms: the first that fits is shown."""
        yield self.columns(), self.rows()

    def write_for_people(self, stream: TextIO) -> None:
        write_table(stream, self.title(), self.forms())


class PropertyOutput(TableOutput):
    """A table with one property a row."""

    def columns(self) -> list[str]:
        return ["Property", "Value"]


class LineOutput(Output):
    """A result that people read as plain lines."""

    @abstractmethod
    def lines(self) -> list[str]:
        """The lines, without their ends."""

    def write_for_people(self, stream: TextIO) -> None:
        stream.writelines(harmless(f"{line}\n", stream) for line in self.lines())


def write_json(value: Any, stream: TextIO) -> None:
    """Writes indented JSON; what JSON has no form for (a time, say) is written as its text."""
    stream.write(json.dumps(value, indent=2, default=str) + "\n")
