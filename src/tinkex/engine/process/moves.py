"""Moves of runs in pieces: creating a run, loading it, or bringing it back to the device.

One run after another, and one piece for every call of `step`, so that gigabytes on their way keep
another tenant's step waiting for no more than some milliseconds.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tinkex.engine.messages import CreateRun, Done, Event, LoadRun, RunInfo
from tinkex.engine.pieces import Pieces
from tinkex.engine.process.failures import failure
from tinkex.engine.process.run_queues import RunQueues
from tinkex.engine.training.residency import Residency


@dataclass(frozen=True, slots=True)
class _Move:
    pieces: Pieces[Any]
    ended: Callable[[Any], None]  # gets the result of the pieces
    failed: Callable[[Exception], None]  # gets their exception


class Moves:
    """The moves of one worker."""

    def __init__(
        self, residency: Residency, runs: RunQueues, emit: Callable[[Event], None]
    ) -> None:
        self._residency, self._runs, self._emit = residency, runs, emit
        self._moves: deque[_Move] = deque()

    def __bool__(self) -> bool:
        return bool(self._moves)

    def carry_out(self, command: CreateRun | LoadRun, pieces: Pieces[RunInfo]) -> None:
        """Add a move. What its run is sent meanwhile waits."""
        started = time.monotonic()
        self._runs.hold(command.run)

        def end(answer: Event) -> None:
            self._runs.release(command.run)
            self._emit(answer)

        self._moves.append(
            _Move(
                pieces,
                lambda made: end(Done(command.op, made, time.monotonic() - started)),
                lambda error: end(failure(command.op, error)),
            )
        )

    def call_back(self) -> None:
        """Begin to bring back the first run that a command waits for, if room can be made."""
        run = None if self._moves else self._runs.first_away()
        if run is None or not self._residency.admit([run]):
            return

        def fail(error: Exception) -> None:
            self._emit(failure(self._runs.take_head(run).op, error))

        self._moves.append(_Move(self._residency.arrival(run), lambda _: None, fail))

    def step(self) -> None:
        """Run one piece of the first move."""
        move = self._moves[0]
        try:
            next(move.pieces)
        except StopIteration as made:
            self._moves.popleft()
            move.ended(made.value)
        except Exception as error:
            self._moves.popleft()
            move.failed(error)
