"""Progress bars of `rich`, loaded when the first one is drawn: that takes 0.09 s.

A bar without a stream does nothing, so callers need not ask whether anyone is looking. Safe to
advance from several threads. Knows nothing of what is being counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

_BAR_WIDTH = 30


class Bar:
    """A progress bar used as a context manager. `unit` "bytes" shows sizes and a rate."""

    def __init__(self, stream: TextIO | None, label: str, total: int | None, unit: str) -> None:
        self._progress = None if stream is None else _progress(stream, unit)
        if self._progress is not None:
            self._task = self._progress.add_task(label, total=total)

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def advance(self, amount: int) -> None:
        """Counts `amount` more as done."""
        if self._progress is not None:
            self._progress.advance(self._task, amount)

    def resume_at(self, amount: int) -> None:
        """Counts `amount` as done before now, so that it does not enter the rate."""
        if self._progress is not None:
            done = self._progress.tasks[0].completed
            self._progress.reset(self._task, completed=int(done) + amount)

    def extend(self, amount: int) -> None:
        """Raises the total, when it becomes known piece by piece."""
        if self._progress is not None:
            total = self._progress.tasks[0].total or 0
            self._progress.update(self._task, total=total + amount)

    def relabel(self, label: str) -> None:
        """Shows another label."""
        if self._progress is not None:
            self._progress.update(self._task, description=label)


def _progress(stream: TextIO, unit: str) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(_BAR_WIDTH),
        TaskProgressColumn(),
        *_facts(unit),
        console=Console(file=stream, highlight=False),
        redirect_stdout=False,
        redirect_stderr=False,
    )


def _facts(unit: str) -> list[ProgressColumn]:
    """Position, rate and time left."""
    from rich.progress import (
        DownloadColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    if unit == "bytes":
        return [DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn()]
    return [MofNCompleteColumn(), TextColumn(unit, markup=False), TimeRemainingColumn()]
